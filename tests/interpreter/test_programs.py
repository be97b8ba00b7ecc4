"""Programs for every feature of the language, compared with CPython."""

import gc

import pytest

from tests.interpreter.oracle import assert_same
from tests.interpreter.programs import calls, classes, exceptions, generators, lifetimes, namespaces, operators

MODULES = (calls, classes, exceptions, generators, lifetimes, namespaces, operators)
ALL = [value for module in MODULES for name, value in vars(module).items() if name.startswith("program_")]


@pytest.mark.parametrize("program", ALL, ids=lambda program: program.__name__.removeprefix("program_"))
def test_program_runs_as_in_cpython(program):
    assert_same(program)
    if "asyncio" in program.__code__.co_names or "async" in program.__name__:
        gc.collect()  # event loops, which would otherwise be freed deep inside an endless recursion
