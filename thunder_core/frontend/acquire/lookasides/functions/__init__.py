"""Lookasides of functions, generators, modules and autograd."""
