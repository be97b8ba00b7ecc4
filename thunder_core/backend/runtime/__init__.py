"""The runtime: programs, the specializations of a compiled function, and what finds the one that takes a call."""
