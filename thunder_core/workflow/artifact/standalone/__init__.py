"""Artifacts that run before their model is built."""
