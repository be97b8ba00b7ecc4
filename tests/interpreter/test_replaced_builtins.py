"""A program that replaces a builtin replaces it only for itself, not for the interpreter."""

import subprocess
import sys

import pytest

PROGRAM = """
import builtins
from thunder_core.frontend.interpreter import interpret

def f():
    old = builtins.{name}
    builtins.{name} = lambda *arguments: 42
    try:
        return [one for one in (1, 2)], {name}([1]), sorted([2, 1]), (lambda *all: all)(3), str({{}})
    finally:
        builtins.{name} = old

print(interpret(f)() == f())
"""


@pytest.mark.parametrize("name", ["len", "id", "enumerate", "isinstance", "type", "tuple", "getattr", "next"])
def test_interpreter_keeps_its_builtins(name):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(name=name)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "True\n", done.stderr
