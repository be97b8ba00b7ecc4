"""Transforms: trace to trace, one a file, each with the traits that order it among others."""
