"""The checks that run on each rank, by name."""

from __future__ import annotations

import pytest

from tests.distributed.collectives import differentiated, refused
from tests.distributed.collectives.collectives import CASES, numbers
from tests.distributed.comparison import assert_refused, assert_same, assert_same_gradients
from thunder_core.foundation.errors import RecompileWarning


def check_results(name: str) -> None:
    """A program's results and writes equal eager's at each call."""
    assert_same(*CASES[name])


def check_refusal(name: str) -> None:
    """A program is refused with the name of the called function, and the program's line."""
    program, refused_name = refused.CASES[name]
    assert_refused(program, numbers(0, 4, 3), name=refused_name)


def check_call_in_eager(name: str) -> None:
    """Eager PyTorch makes the calls of a program that is not traced, with a warning."""
    program, _ = refused.CASES[name]
    with pytest.warns(RecompileWarning, match="made in eager PyTorch"):
        assert_same(program, lambda call: (numbers(call, 4, 3),))


def check_gradients(name: str) -> None:
    """The gradients of a program equal eager's at each call."""
    assert_same_gradients(differentiated.CASES[name], differentiated.arguments)
