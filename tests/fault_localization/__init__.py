"""Fault localization: small programs with one mistake each, and right programs in which nothing is found."""
