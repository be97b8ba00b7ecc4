"""Recomputation of values in the backward instead of saving them."""
