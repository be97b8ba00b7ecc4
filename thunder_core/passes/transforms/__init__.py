"""Transforms from trace to trace, one in each file, each with the traits that order it among others."""
