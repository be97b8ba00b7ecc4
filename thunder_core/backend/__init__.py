"""Executors: who computes which operation, how regions are compiled, kept and called."""
