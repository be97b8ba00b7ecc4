"""A program that replaces a builtin which the interpreter uses must not bring the process down."""

import subprocess
import sys

import pytest

PROGRAM = """
import builtins
from thunder_core.interpreter import interpret

def f():
    old = builtins.{name}
    builtins.{name} = lambda *arguments: 42
    try:
        return [one for one in (1, 2)]
    finally:
        builtins.{name} = old

try:
    interpret(f)()
except BaseException:
    pass
print("alive")
"""


@pytest.mark.parametrize("name", ["len", "id", "enumerate"])
def test_the_process_lives(name):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(name=name)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "alive\n", done.stderr
