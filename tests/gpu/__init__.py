"""The tests that need a GPU, on a machine with a different Python and no network: `python -m tests.gpu`."""
