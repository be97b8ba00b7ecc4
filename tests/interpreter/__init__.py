"""Tests of the interpreter: each program runs in CPython and in the interpreter, with the same outcome."""
