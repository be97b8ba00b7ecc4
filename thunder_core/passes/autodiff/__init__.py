"""Differentiation of traces: rules, reverse and forward mode, and what the backward computes once more."""
