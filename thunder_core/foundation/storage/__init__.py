"""Sealed folders, which artifacts and cache entries are: their manifests, digests and atomic replacement.

The manifest of a sealed folder lists all its files with their digests, and ends with its own digest.
"""
