"""Parallel training: prepare models for the ranks of a process group, and schedule collectives in buckets."""
