"""The standard library's own tests of the language, run in the interpreter. See `python -m tests.conformance`."""
