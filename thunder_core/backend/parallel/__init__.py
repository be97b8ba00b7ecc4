"""Parallel training: models on the ranks of a process group, and the collectives of their programs in buckets."""
