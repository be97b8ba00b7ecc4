"""Faults planted into programs, each of which has to be caught and named."""
