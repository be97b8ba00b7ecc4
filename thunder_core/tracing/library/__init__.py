"""The runtime library: the functions that generated code calls, by the names in programs and artifacts."""
