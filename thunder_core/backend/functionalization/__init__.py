"""Functionalization: writes to tensors become operations that make new ones, by renaming or by PyTorch itself."""
