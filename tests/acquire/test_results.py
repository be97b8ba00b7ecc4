"""What a program returns is of the class that eager returns."""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import thunder_core as thunder
from thunder_core.errors import CannotReplay


class Pair(NamedTuple):
    """A tuple of the user's."""

    low: Any
    high: Any


PROGRAMS: dict[str, Callable[[Tensor], tuple[Any, ...]]] = {
    "a struct sequence": lambda x: torch.linalg.svd(x),
    "one with sizes in it": lambda x: torch.max(x, dim=0),
    "a named tuple": lambda x: Pair(x.min(), x.max()),
    "a size": lambda x: (x * 2).shape,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_tuples_keep_their_class(name: str) -> None:
    x = torch.arange(9.0).reshape(3, 3)
    eager, compiled = PROGRAMS[name](x), thunder.jit(PROGRAMS[name])(x)
    assert type(compiled) is type(eager)
    torch.testing.assert_close(tuple(compiled), tuple(eager), rtol=0, atol=0)


def test_a_sparse_tensor_comes_out_as_one() -> None:
    x = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    compiled = thunder.jit(lambda x: x.to_sparse() if x.dim() == 2 else x)(x)
    assert compiled.layout is torch.sparse_coo
    assert torch.equal(compiled.to_dense(), x)


MADE_ANEW: dict[str, Callable[[Tensor], tuple[Any, ...]]] = {
    "deque": lambda x: (x + 1, deque([x, 2])),
    "defaultdict": lambda x: (x + 1, defaultdict(list, one=[x])),
    "Counter": lambda x: (x + 1, Counter("aab")),
    "OrderedDict": lambda x: (x + 1, OrderedDict(one=x * 2)),
}
KEPT_IN_C: dict[str, Callable[[Tensor], tuple[Any, ...]]] = {
    "array": lambda x: (x + 1, array("i", [1, 2])),
    "Random": lambda x: (x + 1, Random(3)),
    "partial": lambda x: (x + 1, partial(torch.add, x)),
}


@pytest.mark.parametrize("name", MADE_ANEW)
def test_containers_of_the_standard_library_are_made_anew(name: str) -> None:
    x, compiled = torch.ones(2), thunder.jit(MADE_ANEW[name])
    for _ in range(2):
        found, wanted = compiled(x)[1], MADE_ANEW[name](x)[1]
        assert type(found) is type(wanted)
        assert repr(found) == repr(wanted)


@pytest.mark.parametrize("name", KEPT_IN_C)
def test_what_keeps_its_state_in_c_is_refused(name: str) -> None:
    with pytest.raises(CannotReplay, match=name):
        thunder.jit(KEPT_IN_C[name])(torch.ones(2))
