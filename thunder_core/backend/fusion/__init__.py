"""Fusion: bound symbols of a trace become regions; equal regions are compiled once, and compiled code is cached."""
