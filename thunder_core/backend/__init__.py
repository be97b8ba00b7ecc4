"""Executors: which executor runs an operation, and how regions are compiled, stored and called."""
