"""Tensors without data, and how PyTorch's functions run on them."""
