"""PyTorch's older interfaces to a tensor's memory: `new` with a size, and attributes of storages."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import thunder_core as thunder


def of_size(x: Tensor) -> tuple[object, ...]:
    made = (x.new(x.shape), x.new(torch.Size([])), x.new(x[0].size()), x.new(2, 3), x.new(size=(4,)), x.new())
    return tuple((list(item.shape), item.dtype) for item in made)


def of_data(x: Tensor) -> tuple[object, ...]:
    return tuple(made.tolist() for made in (x.new([1.0, 2.0]), x.new((3, 4)), x.new(tuple(x.shape))))


def device(x: Tensor) -> tuple[object, ...]:
    typed, untyped, made = x.storage(), x.untyped_storage(), (x * 2).untyped_storage()
    on_cuda = (typed.is_cuda, untyped.is_cuda, made.is_cuda)
    return typed.device, untyped.device, made.device, getattr(made, "device", None), made.device == x.device, on_cuda


def kind(x: Tensor) -> tuple[object, ...]:
    is_float = isinstance(x.storage(), torch.FloatStorage), isinstance(x.storage(), torch.DoubleStorage)
    return x.storage().type(), x.storage_type(), x.double().storage_type(), *is_float, type(x.untyped_storage())


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("program", [of_size, of_data, device, kind])
def test_storages_match_eager(program: Callable[[Tensor], tuple[object, ...]]):
    compiled, x = thunder.jit(program), torch.ones(2, 3)
    wanted = program(x)
    assert [compiled(x), compiled(x)] == [wanted, wanted]
    assert thunder.cache_misses(compiled) == 1
