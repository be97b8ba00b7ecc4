"""Analyses of traces: shared memory, writes, grad mode, sizes, repeats. No module here rewrites a trace."""
