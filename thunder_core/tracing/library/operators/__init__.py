"""Operators that generated code calls as functions."""
