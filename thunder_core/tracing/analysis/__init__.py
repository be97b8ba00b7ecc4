"""Analyses of traces: shared memory, writes, grad mode, sizes, repeats. Only `control_flow` also rewrites traces."""
