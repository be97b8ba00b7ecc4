"""Functionalization: in-place writes become out-of-place operations, by renaming or by PyTorch itself."""
