"""Facts about traces: shared memory, writes, grad mode, sizes, repeats. Nothing is rewritten here."""
