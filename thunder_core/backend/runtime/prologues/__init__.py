"""Prologues that skip guards: while a module is unchanged, and between the tokens of a generation."""
