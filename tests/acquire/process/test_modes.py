"""Modes that the program enters: their code is a part of the program, with its reads and writes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import thunder_core as thunder
from tests.uncompiled import leave_inductor_out
from thunder_core.foundation.errors import CannotReplay, RecompileWarning

X = torch.arange(3.0)


@pytest.fixture(autouse=True)
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run programs in eager operations; modes do not depend on the executor."""
    leave_inductor_out(monkeypatch)


class Cosine(TorchFunctionMode):
    """A mode that computes a scaled cosine in place of the sine."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.shapes: list[torch.Size] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.sin:
            self.shapes.append(args[0].shape)
            return torch.cos(*args) * self.scale
        return func(*args, **(kwargs or {}))


class Doubling(TorchDispatchMode):
    """A mode that doubles the results of ATen operations."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {})) * 2


@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
def test_reads_and_writes_of_a_mode_from_outside_are_guarded_and_replayed(cache: Any) -> None:
    mode, eagers = Cosine(2.0), Cosine(2.0)

    def program(mode: Cosine, x: Tensor) -> tuple[Tensor, Tensor]:
        with mode:
            return torch.sin(x) + 1, x * 2

    compiled = thunder.jit(program, cache=cache)
    for scale in (2.0, 2.0, 3.0):
        mode.scale = eagers.scale = scale
        for ours, eager in zip(compiled(mode, X), program(eagers, X), strict=True):
            assert torch.equal(ours, eager)
    assert mode.shapes == eagers.shapes == [X.shape] * 3


def test_nested_modes_that_the_program_makes_are_entered_and_left() -> None:
    def program(x: Tensor, scale: float) -> tuple[Tensor, ...]:
        with Cosine(scale) as outer:
            first = torch.sin(x)
            with Cosine(scale + 1) as inner, torch.device("cpu"):
                second = torch.sin(x) + torch.ones(3)
        return first, second, torch.sin(x), torch.tensor(len(outer.shapes) + 10 * len(inner.shapes))

    compiled = thunder.jit(program)
    for scale in (2.0, 3.0):
        for ours, eager in zip(compiled(X, scale), program(X, scale), strict=True):
            assert torch.equal(ours, eager)
    assert torch._C._len_torch_function_stack() == 0


def test_error_that_a_mode_raises_is_caught_by_the_program() -> None:
    class Refusing(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.sin:
                raise ValueError("no sine")
            return func(*args, **(kwargs or {}))

    def program(x: Tensor) -> Tensor:
        try:
            with Refusing():
                return torch.sin(x)
        except ValueError as error:
            return torch.sin(x) + len(str(error))

    compiled = thunder.jit(program)
    assert torch.equal(compiled(X), program(X))


def test_eager_makes_calls_that_enter_a_mode_for_operations() -> None:
    def program(x: Tensor) -> Tensor:
        with Doubling():
            return torch.sin(x)

    with pytest.raises(CannotReplay, match="enters the mode Doubling"):
        thunder.jit(program, data_dependent="error")(X)
    assert torch.equal(torch.sin(X), X.sin())
    compiled = thunder.jit(program)
    with pytest.warns(RecompileWarning, match="enters the mode Doubling"):
        assert torch.equal(compiled(X), program(X))
    assert torch.equal(compiled(X * 2), program(X * 2))
