"""Patterns that come with Thunder: code of widespread libraries that an executor may replace with a faster kernel."""
