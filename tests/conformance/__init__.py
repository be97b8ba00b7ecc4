"""The standard library's own tests of the language, run inside the interpreter. See `python -m tests.conformance`."""
