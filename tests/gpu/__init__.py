"""The tests that need a GPU, on a machine with a Python of its own and no network: `python -m tests.gpu`."""
