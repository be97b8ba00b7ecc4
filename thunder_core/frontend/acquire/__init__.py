"""Tracing of a Python call into prologue (guards, unpacking), computation, and epilogue (side effects)."""
