"""What a program returns is of the class that eager returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import thunder_core as thunder


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
