"""The runtime: programs, the specializations of a compiled function, and the search for the program of a call."""
