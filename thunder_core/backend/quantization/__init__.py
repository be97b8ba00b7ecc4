"""Quantization: low-bit weights, the modules that compute with them, and the errors against float weights."""
