"""Calls that PyTorch would specialize to one value of a size are traced for all sizes, and match eager PyTorch."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import thunder_core as thunder
from tests.symbolic.sizes.test_sizes import assert_same

CALLS: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda x: (x[:, x.shape[1] // 2], x[x.shape[0] - 1], x[..., x.shape[1] - 1], x[None, :, x.shape[1] // 3]),
    "item from the end": lambda x: (x[-(x.shape[0] // 2) - 1], x[1:, -x.shape[1], None], x[x.shape[0] // 2, 1]),
    "length": lambda x: (x.new_zeros(len(x) + 1), len(x)),
    "tensor": lambda x: (torch.tensor(x.shape[1]), torch.tensor([x.shape[1], 2.5]), torch.as_tensor([[len(x)], [3]])),
    "typed tensor": lambda x: torch.tensor(x.shape[1], dtype=torch.float64) + x,
    "shifts": lambda x: (x[:, : x.shape[1] >> 1], x.new_zeros(x.shape[0] << 2), (-len(x)) >> 1),
    "masks": lambda x: (x.new_zeros((x.shape[1] + 7) & ~7), x.new_zeros(x.shape[0] & 7 | 0), ~x.shape[0]),
    "rounds": lambda x: (x[:, : round(x.shape[1] / 2)], round(len(x)), round(x.shape[1] * 0.3)),
    "product": lambda x: (x.reshape(math.prod(x.shape)), math.prod(x.shape, start=2)),
    "index": lambda x: x.new_zeros(operator.index(x.shape[1])),
    "interpolate": lambda x: functional.interpolate(x[None], size=x.shape[1] * 2),
    "interpolate by a factor": lambda x: functional.interpolate(x[None, None], scale_factor=2, mode="bilinear"),
    "interpolate to sizes": lambda x: functional.interpolate(x[None, None], size=x.shape, mode="bicubic"),
    "one hot": lambda x: functional.one_hot(torch.arange(3), x.shape[0]),
    "linspace": lambda x: (torch.linspace(0, 1, x.shape[1]), torch.linspace(0, x.shape[0], 5, dtype=torch.float64)),
    "linear of a slice": lambda x: functional.linear(x.reshape(-1, 2, 2)[:, -1:], torch.ones(3, 2)),
    "linear with a bias": lambda x: functional.linear(x.reshape(-1, 2, 2)[:, 1:], torch.ones(3, 2), bias=torch.ones(3)),
    "linear of a vector of weights": lambda x: functional.linear(x.reshape(-1, 2, 2)[:, :1], torch.ones(2)),
    "triangles": lambda x: (torch.tril_indices(x.shape[0], x.shape[1]), torch.triu_indices(x.shape[1], x.shape[1], 1)),
}
# `n & 7 | 0` needs the value, and so does a branch on the shape of a triangle.
MOST = {"masks": 4, "triangles": 2}


def written(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, x.shape[1] // 2] = 1.0
    y[x.shape[0] - 1] += 2
    return y


@pytest.mark.parametrize("name", [*CALLS, "written"])
@pytest.mark.filterwarnings("ignore::thunder_core.foundation.errors.RecompileWarning")
def test_all_sizes_share_few_programs(name: str) -> None:
    function = CALLS.get(name, written)
    compiled = thunder.jit(function, cache="symbolic values")
    for shape in ((4, 6), (6, 8), (10, 12), (12, 20)):
        x = torch.randn(shape)
        assert_same(function(x), compiled(x))
    assert thunder.cache_misses(compiled) <= MOST.get(name, 1), thunder.recompile_reasons(compiled)


@pytest.mark.parametrize("first", [1, 2])
def test_linear_of_a_slice_does_not_decide_on_a_size_of_one(first: int) -> None:
    compiled = thunder.jit(lambda x, weight: functional.linear(x[:, -1:], weight), cache="symbolic values")
    weight = torch.randn(5, 4)
    for batch in (first, 3, 1, 7):
        x = torch.randn(batch, 6, 4)
        assert_same(functional.linear(x[:, -1:], weight), compiled(x, weight))
    assert thunder.cache_misses(compiled) == 1, thunder.recompile_reasons(compiled)


@pytest.mark.parametrize("name", ["item", "interpolate", "linear of a slice"])
def test_gradients_match_eager_at_all_sizes(name: str) -> None:
    function = CALLS.get(name, written)
    compiled = thunder.jit(function, cache="symbolic values")
    for shape in ((4, 6), (6, 8), (10, 12)):
        x = torch.randn(shape, requires_grad=True)
        found, wanted = (
            torch.autograd.grad(sum(item.square().sum() for item in ends if item.requires_grad), x)
            for ends in (map_to_tuple(compiled(x)), map_to_tuple(function(x)))
        )
        torch.testing.assert_close(found, wanted)
    assert thunder.cache_misses(compiled) == 1


def map_to_tuple(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def test_an_index_out_of_range_raises_as_in_eager() -> None:
    compiled = thunder.jit(lambda x, place: x[place] * 2, cache="symbolic values")
    x = torch.arange(5.0)
    for place in (3, -5, 4, 0):
        assert compiled(x, place) == x[place] * 2
    with pytest.raises(IndexError):
        compiled(x, 5)


SIZED: dict[str, Callable[[Tensor, Any], Any]] = {
    "given": lambda x, sizes: torch.zeros(sizes) + x.sum(),
    "unpacked": lambda x, sizes: torch.zeros(*sizes) + x.sum(),
    "gone through": lambda x, sizes: sum(x * size for size in sizes),
    "returned": lambda x, sizes: (x * sizes[0], sizes),
}


@pytest.mark.parametrize("kind", [tuple, torch.Size])
@pytest.mark.parametrize("name", SIZED)
@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
def test_numbers_inside_a_tuple_are_symbolic(name: str, kind: Any, cache: Any) -> None:
    compiled = thunder.jit(SIZED[name], cache=cache)
    x = torch.ones(4)
    for number in (2, 3, 4, 5):
        sizes = kind((number, number + 1))
        assert_same(SIZED[name](x, sizes), compiled(x, sizes))
    assert thunder.cache_misses(compiled) <= 2


@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
def test_slices_at_any_offset_share_programs(cache: Any) -> None:
    def scaled(x: Tensor) -> Tensor:
        return x[1:] * 2

    compiled, memory = thunder.jit(scaled, cache=cache), torch.randn(40, 3)
    for start, end in ((0, 5), (3, 9), (5, 30), (2, 4)):
        assert_same(scaled(memory[start:end]), compiled(memory[start:end]))
    assert thunder.cache_misses(compiled) <= 2


@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
def test_storage_offset_of_a_slice_is_read_at_each_call(cache: Any) -> None:
    def placed(x: Tensor) -> tuple[Tensor, int]:
        return x * 2, x[1:].storage_offset()

    compiled, memory = thunder.jit(placed, cache=cache), torch.randn(40)
    for start, end in ((0, 5), (3, 8), (3, 9)):
        assert_same(placed(memory[start:end]), compiled(memory[start:end]))
