"""The runtime library: the functions that generated code calls, named in the text of programs and artifacts."""
