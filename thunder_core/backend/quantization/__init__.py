"""Quantization: weights in few bits, the modules that compute with them, and how far these are from the float ones."""
