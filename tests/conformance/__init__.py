"""The tests of the Python language in the standard library, run in the interpreter by `python -m tests.conformance`."""
