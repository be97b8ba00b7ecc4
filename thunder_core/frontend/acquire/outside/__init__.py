"""Reads and writes outside of a program: paths, guards, effects."""
