"""Transforms of traces, derivatives, and the recipes that select them."""
