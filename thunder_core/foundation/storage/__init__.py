"""Sealed folders: manifests, digests, atomic replacement and full disks, for artifacts and for cache entries alike."""
