"""Questions of a program whether tensors share memory are answered as in eager PyTorch, at each call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import thunder_core as thunder

COMPARISONS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "identity": lambda x, y: x.untyped_storage() is y.untyped_storage(),
    "equality": lambda x, y: x.untyped_storage() == y.untyped_storage(),
    "number": lambda x, y: x.untyped_storage()._cdata == y.untyped_storage()._cdata,
    "set": lambda x, y: len({x.untyped_storage(), y.untyped_storage()}),
    "number of the typed storage": lambda x, y: x._typed_storage()._cdata == y._typed_storage()._cdata,
    "computed": lambda x, y: [x.untyped_storage() is z.untyped_storage() for z in (x.view(2, 3), x + 1, y)],
}
ADDRESSES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "address": lambda x, y: x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr(),
    "address of the typed storage": lambda x, y: x._typed_storage().data_ptr() == y._typed_storage().data_ptr(),
    "address of a result": lambda x, y: (x + 1).untyped_storage().data_ptr() != 0,
    "set of addresses": lambda x, y: len({z.untyped_storage().data_ptr() for z in (x, y, x + 1)}),
    "address of the tensor": lambda x, y: x.data_ptr() == y.data_ptr(),
    "same memory": lambda x, y: x.is_set_to(y),
    "alias": lambda x, y: torch._C._is_alias_of(x, y),
    "overlap": lambda x, y: torch._C._overlaps(x, y),
}


def pairs() -> list[tuple[Tensor, Tensor]]:
    x, y = torch.arange(6.0), torch.arange(6.0)
    halves = torch.arange(12.0).split(6)
    return [(x, x.view_as(x)), (x, y), (x, x), halves, (y, x), (x, x.view_as(x))]


@pytest.mark.parametrize("program", COMPARISONS.values(), ids=COMPARISONS)
def test_comparison_of_storages_is_guarded(program: Callable[[Tensor, Tensor], Any]) -> None:
    fast = thunder.jit(program)
    for x, y in pairs():
        assert fast(x, y) == program(x, y)
    assert thunder.cache_misses(fast) <= 3


@pytest.mark.filterwarnings("ignore::thunder_core.foundation.errors.RecompileWarning")
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("program", ADDRESSES.values(), ids=ADDRESSES)
def test_address_is_read_in_eager(program: Callable[[Tensor, Tensor], Any]) -> None:
    fast = thunder.jit(program)
    for x, y in pairs():
        assert fast(x, y) == program(x, y)
    assert thunder.recompile_reasons(fast)


def test_address_of_a_storage_is_refused_where_eager_may_not_run() -> None:
    fast = thunder.jit(lambda x: x.untyped_storage().data_ptr(), data_dependent="error")
    with pytest.raises(thunder.errors.CannotReplay, match="addresses of memory"):
        fast(torch.ones(2))
