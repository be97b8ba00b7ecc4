"""Functionalization: replace in-place writes by out-of-place operations, by renaming or with PyTorch's own passes."""
