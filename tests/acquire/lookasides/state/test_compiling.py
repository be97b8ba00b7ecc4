"""Programs that check whether they are being compiled get eager's answer, if they can be traced with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

import thunder_core as thunder
from thunder_core.foundation.errors import DataDependent

X = torch.tensor([1.0, -2.0, 3.0])


def is_tracing() -> bool:
    """A library's own check, several calls away from PyTorch's function."""
    return torch.compiler.is_compiling()


def with_default_mask(x: Tensor, mask: Tensor | None = None) -> Tensor:
    if mask is None and not is_tracing():
        mask = x > 0
    return x if mask is None else x * mask


def with_shortcut(x: Tensor, mask: Tensor) -> Tensor:
    """Skip masks of ones, unless the check needs values that are not available."""
    if not is_tracing() and torch.all(mask == 1):
        return x
    return torch.where(mask == 1, x, -1.0)


def with_both(x: Tensor, mask: Tensor) -> Tensor:
    return with_default_mask(with_shortcut(x, mask))


@pytest.mark.parametrize("data_dependent", ["guard", "error"])
def test_the_answer_matches_eager(data_dependent: Any) -> None:
    compiled = thunder.jit(with_default_mask, data_dependent=data_dependent)
    assert torch.equal(compiled(X), with_default_mask(X))


def test_shortcuts_match_eager() -> None:
    compiled = thunder.jit(with_both)
    for mask in (torch.ones(3), torch.tensor([1.0, 0.0, 1.0]), torch.ones(3)):
        assert torch.equal(compiled(X, mask), with_both(X, mask))
    assert (thunder.cache_misses(compiled), thunder.cache_hits(compiled)) == (2, 1)


def test_with_symbolic_sizes_branches_that_avoid_values_come_first() -> None:
    """One program serves all masks of all sizes; a guard on a value would restrict the program."""
    compiled = thunder.jit(with_both, cache="symbolic values")
    for mask in (torch.tensor([1.0, 0.0, 1.0]), torch.ones(3), torch.ones(4)):
        x = torch.randn(len(mask))
        assert torch.equal(compiled(x, mask), with_both(x, mask))
    assert thunder.cache_misses(compiled) == 1


def test_with_symbolic_sizes_unavoidable_values_are_guarded() -> None:
    def signed(x: Tensor) -> Tensor:
        shortened = with_shortcut(x, x)
        return shortened if x.sum() > 0 else -shortened

    compiled = thunder.jit(signed, cache="symbolic values")
    for x in (torch.ones(3), torch.ones(5), torch.tensor([3.0, -1.0]), torch.tensor([-2.0, -3.0, 1.0])):
        assert torch.equal(compiled(x), signed(x))
    assert thunder.cache_misses(compiled) == 3  # a mask of ones, another mask, and a mask with a sum below zero


def test_only_the_check_that_avoids_a_value_gets_another_answer() -> None:
    """One program serves all masks, and the other check still gets eager's answer."""
    compiled = thunder.jit(with_both, data_dependent="error")
    for mask in (torch.ones(3), torch.tensor([1.0, 0.0, 1.0])):
        assert torch.equal(compiled(X, mask), with_both(X, mask))
    assert thunder.cache_misses(compiled) == 1


def test_value_that_no_check_avoids_is_refused() -> None:
    def program(x: Tensor) -> Tensor:
        y = with_default_mask(x)
        return y if y.sum() > 0 else x

    with pytest.raises(DataDependent, match=r"__bool__"):
        thunder.jit(program, data_dependent="error")(X)


def test_value_whose_refusal_the_program_swallows_is_avoided() -> None:
    def program(x: Tensor, mask: Tensor) -> Tensor:
        try:
            y = with_shortcut(x, mask)
        except Exception:
            y = x + 100
        return with_default_mask(y)

    compiled = thunder.jit(program, data_dependent="error")
    mask = torch.tensor([1.0, 0.0, 1.0])
    assert torch.equal(compiled(X, mask), program(X, mask))


QUESTIONS: dict[str, Callable[[Tensor], Any]] = {
    "its class": lambda y: type(y) is torch.Tensor,
    "its class by its attribute": lambda y: y.__class__ is torch.Tensor,
    "the name of its class": lambda y: type(y).__name__,
    "whether it is a fake": lambda y: isinstance(y, FakeTensor),
    "whether it is one of several": lambda y: (
        isinstance(y, (int, (FakeTensor, str))),
        isinstance(y, int | FakeTensor),
    ),
    "whether it is a tensor or a fake": lambda y: isinstance(y, (FakeTensor, Tensor)),
    "whether it is a parameter": lambda y: isinstance(y, torch.nn.Parameter),
    "a table of classes": lambda y: {torch.Tensor: "tensor"}.get(type(y), "else"),
    "its value as a text": lambda y: f"{y.sum()}",
    "its value in a format": lambda y: f"{y.sum():.2f}",
    "its values": lambda y: (str(y), repr(y), f"{y}"),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_attributes_of_a_computed_tensor_match_eager(name: str) -> None:
    ask = QUESTIONS[name]
    compiled = thunder.jit(lambda x: (x, ask(x), ask(x + 1)))
    for x in (X, X * 2, X):
        assert compiled(x)[1:] == (ask(x), ask(x + 1))


def test_text_of_values_is_refused_if_values_are_refused() -> None:
    with pytest.raises(DataDependent, match="reads the value of a tensor"):
        thunder.jit(lambda x: {f"{x.sum():.2f}": x}, data_dependent="error")(X)


def test_two_calls_of_a_legacy_constructor_are_recorded_twice() -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        return tuple(x[: torch.IntTensor([size])[0]] for size in (2, 1, 2))

    compiled = thunder.jit(program)
    assert all(map(torch.equal, compiled(X), program(X)))
