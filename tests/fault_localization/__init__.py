"""Fault localization: small programs with a single mistake each, and right programs in which no fault is found."""
