"""Programs that hypothesis writes, run in CPython and inside the interpreter. See `python -m tests.fuzz`."""
