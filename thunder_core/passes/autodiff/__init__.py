"""Differentiation of traces: derivative rules, reverse and forward mode, and recomputation in the backward."""
