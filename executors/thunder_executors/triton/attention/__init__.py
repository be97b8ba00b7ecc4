"""Attention of few queries to a cache: its kernels, the calls that they replace, and masks with a last key."""
