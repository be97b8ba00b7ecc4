"""Claiming: which executor runs each bound symbol, what an executor is, and when tensors are freed."""
