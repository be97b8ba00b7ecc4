"""Patterns that come with Thunder: what widespread libraries write, for any executor that can do it better."""
