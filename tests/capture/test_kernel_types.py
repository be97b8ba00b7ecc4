"""Calls with dtypes that a kernel refuses raise as in eager PyTorch, even if their result is unused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import thunder_core as thunder
from thunder_core.tracing.capture.fakes import kernel_types

REFUSED: dict[str, Callable[[Tensor], Any]] = {
    "max_pool1d of integers": lambda x: functional.max_pool1d(x.long(), 2),
    "softmax of integers": lambda x: x.int().softmax(-1),
    "erf of complex": lambda x: torch.erf(x.to(torch.complex64)),
    "cross of booleans": lambda x: torch.linalg.cross(x > 0, x > 1, dim=1),
    "glu of integers": lambda x: functional.glu(x.long()),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
def test_refused_dtype_raises_although_the_result_is_unused(name: str, cache: str) -> None:
    def program(x: Tensor) -> Tensor:
        REFUSED[name](x)
        return x + 1

    x = torch.arange(24.0).reshape(2, 3, 4)
    with pytest.raises((RuntimeError, NotImplementedError), match="not implemented for"):
        program(x)
    with pytest.raises((RuntimeError, NotImplementedError), match="not implemented for"):
        thunder.jit(program, cache=cache)(x)


def test_accepted_dtypes_are_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    eager_error = kernel_types.eager_error

    def counted(function: Any, *args: Any, **kwargs: Any) -> Exception | None:
        tried.append(function.__name__)
        return eager_error(function, *args, **kwargs)

    monkeypatch.setattr(kernel_types.KERNEL_TYPES, "_accepted", set())
    monkeypatch.setattr(kernel_types, "eager_error", counted)

    def program(x: Tensor, mask: Tensor) -> Tensor:
        return (x + 1).cumsum(0) + 1, mask & mask, functional.one_hot(x, 9)

    for length in (3, 4):
        thunder.jit(program)(torch.arange(length), torch.ones(length, dtype=torch.bool))
    assert sorted(tried) == ["__and__", "add", "cumsum", "one_hot"]


def test_custom_operator_is_not_tried() -> None:
    """A custom operator may have arbitrary effects, so it is not tried."""
    calls: list[int] = []

    @torch.library.custom_op("kernel_types::counted", mutates_args=())
    def counted(x: Tensor) -> Tensor:
        calls.append(1)
        return x.clone()

    counted.register_fake(lambda x: torch.empty_like(x))
    assert torch.equal(thunder.jit(lambda x: counted(x))(torch.arange(3)), torch.arange(3))
    assert calls == [1]


def test_operator_with_effects_on_a_constant_runs_in_the_program_alone() -> None:
    """PyTorch's fake mode runs operations on constants such as `torch.tensor([2.0])` while it traces."""
    calls: list[float] = []

    @torch.library.custom_op("kernel_types::noted", mutates_args=())
    def noted(x: torch.Tensor) -> torch.Tensor:
        calls.append(float(x))
        return x + 1

    noted.register_fake(torch.empty_like)
    compiled = thunder.jit(lambda x: x * torch.ops.kernel_types.noted(torch.tensor(2.0)))
    for count in (1, 2):
        torch.testing.assert_close(compiled(torch.ones(2)), torch.full((2,), 3.0))
        assert calls == [2.0] * count
