"""Compiling a region's C++ into machine code."""
