"""Warnings that refer to a caller of the compiled function: the line is that of each call, as in eager PyTorch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import thunder_core as thunder

X = torch.ones(2)


@pytest.fixture(autouse=True)
def eager_kernels(without_kernels: None) -> None:
    """Run programs in eager operations; warnings do not depend on the executor."""


def warn_at(level: int) -> Callable[[torch.Tensor], torch.Tensor]:
    def program(x: torch.Tensor) -> torch.Tensor:
        warnings.warn(f"size {x.shape[0]}", FutureWarning, stacklevel=level)
        return x + 1

    return program


def lines(function: Callable[..., Any], action: str = "always") -> list[Any]:
    """Call a function from two lines, and once more by another function; return the lines that the warnings name."""

    def call_again(x: torch.Tensor) -> Any:
        return function(x)

    with warnings.catch_warnings(record=True) as issued:
        warnings.simplefilter(action)  # type: ignore[arg-type]
        function(X)
        for _ in range(2):
            function(X)
        call_again(X)
    return [(item.filename, item.lineno, str(item.message)) for item in issued]


@pytest.mark.parametrize("action", ["always", "default"])
@pytest.mark.parametrize("level", [1, 2, 500])
def test_lines(level: int, action: str) -> None:
    compiled = thunder.jit(warn_at(level), data_dependent="error")
    compiled_lines = lines(compiled, action)
    globals().pop("__warningregistry__", None)
    assert compiled_lines == lines(warn_at(level), action)
    globals().pop("__warningregistry__", None)
    assert thunder.cache_misses(compiled) == 1


def test_line_that_calls_a_module() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return warn_at(5)(x)

    assert lines(thunder.jit(Model())) == lines(Model())


def test_filter_for_the_module_of_the_caller() -> None:
    def program(x: torch.Tensor) -> Any:
        try:
            warnings.warn("perhaps an error", UserWarning, stacklevel=2)
        except UserWarning:
            return "raised"
        return "issued"

    compiled = thunder.jit(program, data_dependent="error")
    for module, outcome in (("other", "issued"), (__name__, "raised"), ("other", "issued")):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.filterwarnings("error", module=module)
            assert compiled(X) == outcome
