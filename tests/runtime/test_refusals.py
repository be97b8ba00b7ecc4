"""Operations that cannot be differentiated raise eager's error and name the line of the program."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import thunder_core as thunder
from thunder_core.foundation.errors import NotDifferentiable


@torch.library.custom_op("thunder_tests::opaque", mutates_args=())
def opaque(x: torch.Tensor) -> torch.Tensor:
    return x * 3


opaque.register_fake(torch.empty_like)


def underived(x: torch.Tensor) -> torch.Tensor:
    hidden = x.sin()
    return opaque(hidden) * 2  # here


def mismatched(x: torch.Tensor) -> torch.Tensor:
    hidden = x.sin()
    return hidden + torch.ones(5)  # here


def written(x: torch.Tensor) -> torch.Tensor:
    x.mul_(2)  # here
    return x


def line_of(function: Callable[..., Any]) -> int:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    start = function.__code__.co_firstlineno
    return next(number for number in range(start, start + 10) if lines[number - 1].endswith("# here"))


@pytest.mark.parametrize(
    ("program", "message"),
    [(mismatched, "must match the size"), (written, "a leaf Variable that requires grad")],
)
def test_errors_of_pytorch_show_the_source_line(program, message):
    with pytest.raises(RuntimeError, match=message) as expected:
        program(torch.ones(3, requires_grad=True))
    with pytest.raises(RuntimeError, match=message) as found:
        thunder.jit(program)(torch.ones(3, requires_grad=True))
    assert str(found.value) == str(expected.value)
    last = traceback.extract_tb(found.value.__traceback__)[-1]
    assert (last.filename, last.lineno, last.name) == (__file__, line_of(program), program.__name__)


def test_a_program_may_catch_errors_of_pytorch():
    def careful(x: torch.Tensor) -> torch.Tensor:
        try:
            return mismatched(x)
        except RuntimeError:
            return x * 2

    torch.testing.assert_close(thunder.jit(careful)(torch.ones(3)), torch.full((3,), 2.0))


def test_a_backward_without_a_derivative_names_the_line():
    x = torch.ones(3, requires_grad=True)
    output = thunder.jit(underived)(x)
    torch.testing.assert_close(output, underived(x))
    with pytest.raises(NotDifferentiable, match=r"no derivative of `torch\.ops\.thunder_tests\.opaque") as caught:
        output.sum().backward()
    assert caught.value.where is not None
    assert (caught.value.where.filename, caught.value.where.lineno) == (__file__, line_of(underived))


def test_a_second_backward_needs_the_graph():
    x = torch.ones(3, requires_grad=True)
    output = thunder.jit(torch.sin)(x)
    output.sum().backward()
    with pytest.raises(RuntimeError, match=r"Specify retain_graph=True") as caught:
        output.sum().backward()
    torch.sin(x).sum().backward()
    assert "backward through the graph a second time" in str(caught.value)
