"""Measure free memory and its limits, and release memory."""
