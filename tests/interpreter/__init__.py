"""Tests of the interpreter: each program runs in CPython and inside, and nobody can tell which was which."""
