"""Symbolic sizes and numbers of a recording."""
