"""A compiled function that a compiled function calls gives the same result as alone, whatever their options."""

from __future__ import annotations

import functools
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import thunder_core as thunder
from tests.compiler.inner_functions import SINES, Scaled, X, calls, sines
from thunder_core import functional
from thunder_core.foundation.errors import (
    CannotReplay,
    DataDependent,
    SharpEdgeError,
    WrongInputs,
)
from thunder_core.passes.transforms.autocast import Autocast


@SINES.implements(torch.sin)
def hundredfold(x: Tensor) -> Tensor:
    return x * 100


def sine(x: Tensor) -> Tensor:
    return torch.sin(x)


def test_inner_function_keeps_its_executors() -> None:
    inner = sines(sine)
    outer = thunder.jit(lambda x: inner(x) + torch.sin(x))
    for x in (X, X * 2):
        assert torch.equal(outer(x), x * 100 + torch.sin(x))
    assert thunder.cache_misses(inner) == thunder.cache_misses(outer) == 1
    assert [line.symbol.target.__name__ for line in calls(outer)] == ["sine"]
    assert "= sine(x)" in str(thunder.last_traces(outer)[-1])


def test_inner_function_keeps_its_transforms() -> None:
    linear = nn.Linear(2, 2)
    inner = thunder.jit(linear, transforms=[Autocast()])
    outer = thunder.jit(lambda x: (inner(x), linear(x)))
    found, plain = outer(X)
    assert found.dtype == inner(X).dtype == torch.bfloat16
    assert plain.dtype == torch.float32


def test_inner_function_keeps_its_bound_constants() -> None:
    settings = {"offset": 5.0}
    inner = functional.jit(lambda x: x + settings["offset"], sharp_edges="allow")
    inner(X)
    settings["offset"] = 7.0
    for outer in (thunder.jit(lambda x: inner(x) * 1), functional.jit(lambda x: inner(x) * 1)):
        assert torch.equal(outer(X), X + 5)


def test_function_with_equal_options_is_inlined() -> None:
    inner, pure = thunder.jit(sine), functional.jit(sine)
    outer, others = thunder.jit(lambda x: inner(x) + 1), functional.jit(lambda x: pure(x) + 1)
    assert torch.equal(outer(X), others(X))
    assert calls(outer) == calls(others) == []


OPTIONS: dict[str, dict[str, Any]] = {
    "sharp_edges": {"sharp_edges": "warn"},
    "data_dependent": {"data_dependent": "retrace"},
    "memory_budget": {"memory_budget": 0.5},
    "cache": {"cache": "no caching"},
    "functional": {"functional": True},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_inner_function_keeps_every_option(name: str) -> None:
    inner = thunder.jit(sine, **OPTIONS[name])
    outer = thunder.jit(lambda x: inner(x) + 1)
    for _ in range(2):
        assert torch.equal(outer(X), torch.sin(X) + 1)
    assert len(calls(outer)) == 1
    assert thunder.cache_misses(inner) == (2 if name == "cache" else 1)


def test_refusals_of_an_inner_function_apply_inside() -> None:
    same_input = thunder.jit(lambda x: x * 2, cache="same input")
    same_input(X)
    with pytest.raises(WrongInputs, match="same input"):
        thunder.jit(lambda x: same_input(x))(torch.ones(3))
    offset = torch.ones(2)
    with pytest.raises(SharpEdgeError, match="offset"):
        pure = functional.jit(lambda x: x + offset)
        thunder.jit(lambda x: pure(x))(X)
    strict = thunder.jit(lambda x: x if x.sum() > 0 else -x, data_dependent="error")
    with pytest.raises(DataDependent):
        thunder.jit(lambda x: strict(x))(X)


def test_compiled_methods_partials_and_callbacks_match_eager() -> None:
    one, inner = Scaled(), sines(sine)
    moved = partial(sines(lambda x, by: torch.sin(x) + by), by=1)
    assert torch.equal(thunder.jit(lambda x: one.scaled(x) + 1)(X), X * 200 + 1)
    assert torch.equal(thunder.jit(lambda x: Scaled.scaled(one, x) + 1)(X), X * 200 + 1)
    assert torch.equal(thunder.jit(lambda x: moved(x) + 1)(X), X * 100 + 2)
    assert torch.equal(thunder.jit(lambda x: [*map(inner, [x, x * 2])][1])(X), X * 200)
    assert torch.equal(thunder.jit(inner)(X), X * 100)


def test_function_from_an_artifact_is_called(tmp_path: Path) -> None:
    linear = nn.Linear(2, 2)
    compiled = thunder.jit(linear, transforms=[Autocast()])
    with torch.no_grad():
        compiled(X)
        for strict in (False, True):
            thunder.save(compiled, tmp_path / str(strict))
            loaded = thunder.load(tmp_path / str(strict), linear, strict=strict)
            outer = thunder.jit(nn.Sequential(loaded))
            assert torch.equal(outer(X), compiled(X))
            assert (thunder.cache_misses(loaded), thunder.cache_hits(loaded)) == (0, 1)
    with pytest.raises(CannotReplay, match="which has its own settings"):
        thunder.save(outer, tmp_path / "outer")


def in_place(x: Tensor, parts: list[Any]) -> dict[str, Any]:
    """Return a result of several kinds, one of which is an argument that it writes to."""
    x.add_(parts[0])
    return {"given": x, "made": [parts[0] * 2, 3, None], "shape": x.shape}


def test_trees_of_arguments_and_results_match_eager() -> None:
    inner = sines(in_place)

    def program(x: Tensor) -> tuple[Any, ...]:
        y = x * 1
        found = inner(y, [x, 1])
        return y, found["given"] is y, found, y + 1

    compiled = thunder.jit(program)
    for x in (X, X * 3):
        torch.testing.assert_close(compiled(x.clone()), program(x.clone()), rtol=0, atol=0)
    assert thunder.cache_misses(compiled) == 1


def test_unexpected_result_structure_undoes_its_writes() -> None:
    count = torch.zeros(())

    def counted(x: Tensor) -> Any:
        count.add_(1)
        return x if x.sum() > 0 else (x, x)

    inner = sines(counted)
    outer = thunder.jit(lambda x: inner(x + 0))
    for number, x in enumerate((X, -X, X), start=1):
        outer(x)
        assert count == number


def test_number_from_a_tensor_is_returned() -> None:
    inner = sines(lambda x: x.sum().item())
    outer = thunder.jit(lambda x: x * inner(x))
    for factor in (1, 2, 3):
        assert torch.equal(outer(X * factor), X * factor * 3.0 * factor)
    assert thunder.cache_misses(outer) == 1


def test_result_structure_may_depend_on_values() -> None:
    inner = sines(lambda x: x if x.sum() > 0 else (-x, x))
    outer = thunder.jit(lambda x: [torch.tensor(0.0), inner(x * 2)])
    for x in (X, -X, X):
        found = outer(x)[1]
        assert torch.equal(found[0], x * -2) if isinstance(found, tuple) else torch.equal(found, x * 2)
    assert thunder.cache_misses(outer) == thunder.cache_misses(inner) == 2


def test_branch_on_the_result_of_an_inner_function_matches_eager() -> None:
    inner = sines(sine)
    outer = thunder.jit(lambda x: x if inner(x).sum() > 0 else -x)
    assert torch.equal(outer(X), X)
    assert torch.equal(outer(-X), X)


VALUED = sines(lambda x: x if x.sum() > 0 else -x)


def test_wrapper_of_a_compiled_function_is_another_function() -> None:
    """`functools.wraps` copies the attributes of the compiled function to the wrapper, as `torch.vmap` does."""
    compiled = thunder.jit(lambda x: x.sum())

    @functools.wraps(compiled)
    def wrapper(x: torch.Tensor) -> torch.Tensor:
        return compiled(x) * 2

    x = torch.ones(2, 3)
    assert thunder.jit(lambda x: wrapper(x) + 1)(x) == 13
    assert torch.equal(thunder.jit(lambda x: torch.vmap(compiled)(x))(x), x.sum(1))
    assert torch.equal(thunder.grad(wrapper)(x), x * 2)
    doubled = torch.compile(lambda x: x * 2, backend="eager")
    wrapped = functools.wraps(doubled)(lambda x: doubled(x) + 1)
    assert torch.equal(thunder.jit(lambda x: wrapped(x))(x), x * 3)


class Factor:
    """An object with a number, as an argument or as an item of an outside list."""

    def __init__(self, number: float) -> None:
        self.number = number


FACTORS = [Factor(2.0), Factor(5.0)]
CHOICES: dict[str, Any] = {
    "argument": (lambda x, a, b: a if x.sum() > 0 else b, lambda chosen: chosen.number),
    "outside object": (lambda x, a, b: FACTORS[0] if x.sum() > 0 else FACTORS[1], lambda chosen: chosen.number),
    "tensor": (lambda x, a, b: x if x.sum() > 0 else a.number * X, lambda chosen: chosen + 1),
    "two": (lambda x, a, b: [a, b] if x.sum() > 0 else [b, a], lambda chosen: chosen[0].number * 3),
}


@pytest.mark.parametrize("name", CHOICES)
def test_inner_function_that_returns_an_argument_by_a_value_returns_the_argument_of_each_call(name: str) -> None:
    choose, use = CHOICES[name]
    inner = thunder.jit(choose, cache="symbolic values")
    outer = thunder.jit(lambda x, a, b: x * use(inner(x, a, b)))
    for x in (X, -X, X * 2, -X * 3):
        assert torch.equal(outer(x, *FACTORS), x * use(choose(x, *FACTORS)))
    assert calls(outer)


def test_inner_function_that_returns_one_of_two_tensors_by_a_value_returns_the_tensor_of_each_call() -> None:
    inner = thunder.jit(lambda x, a, b: a if x.sum() > 0 else b, cache="symbolic values")
    outer = thunder.jit(lambda x, a, b: inner(x, a * 1, b) + 1)
    for x in (X, -X, X * 2, -X * 3):
        assert torch.equal(outer(x, X * 5, X * 7), (X * 5 if x.sum() > 0 else X * 7) + 1)
    assert thunder.cache_misses(outer) == 2
