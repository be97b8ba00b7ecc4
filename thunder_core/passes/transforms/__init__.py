"""Transforms of traces. Each file defines one transform, with the traits that decide its order among transforms."""
