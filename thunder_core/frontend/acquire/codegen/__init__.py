"""Statements of a prologue and an epilogue: unpacking, guards, constraints, expressions."""
