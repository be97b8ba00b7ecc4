"""Symbolic sizes and numbers in a recording."""
