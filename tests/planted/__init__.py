"""Faults planted into programs. Each fault must be found and named."""
