"""Lookasides of operators that take functions, and of code that is traced as one call."""
