"""Sealed folders, for artifacts and cache entries: manifests, digests, atomic replacement and full disks."""
