"""Lookasides of the process's state, of printing, and of Python's own objects."""
