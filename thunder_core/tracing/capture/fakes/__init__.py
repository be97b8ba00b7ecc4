"""Fake tensors, which have no data, and the execution of PyTorch's functions on them."""
