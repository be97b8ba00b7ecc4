"""PyTorch's containers of modules and parameters whose items are read by C code: the items are guarded."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import thunder_core as thunder

READ: dict[str, Callable[[Any], Any]] = {
    "next": lambda items: next(reversed(items)),
    "list": lambda items: tuple(reversed(items))[-2],
    "enumerate": lambda items: next(enumerate(reversed(items)))[1],
    "zip": lambda items: next(zip(items, reversed(items), strict=True))[1],
    "itemgetter": lambda items: operator.itemgetter(1)(items),
}
MAKE: dict[str, Callable[[], Any]] = {
    "ModuleList": lambda: nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)]),
    "Sequential": lambda: nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)),
    "ParameterList": lambda: nn.ParameterList([nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))]),
}
OTHER: dict[str, Callable[[], Any]] = {
    "ModuleList": lambda: nn.Linear(2, 2, bias=False),
    "Sequential": lambda: nn.Linear(2, 2, bias=False),
    "ParameterList": lambda: nn.Parameter(torch.full((2,), 3.0)),
}


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("how", READ)
def test_an_item_that_is_replaced_is_noticed(kind: str, how: str) -> None:
    items, x = MAKE[kind](), torch.ones(1, 2)

    def program(x: Tensor) -> Tensor:
        item = READ[how](items)
        return item(x) if isinstance(item, nn.Module) else item * x

    compiled = thunder.jit(program)
    torch.testing.assert_close(compiled(x), program(x))
    assert thunder.last_program(compiled).sharp_edges == ()
    assert compiled(x).requires_grad
    assert thunder.last_backward_reason(compiled) == ""
    items[1] = OTHER[kind]()
    torch.testing.assert_close(compiled(x), program(x))


def test_a_package_whose_name_begins_with_torch_is_the_users() -> None:
    filename = f"{torch.__path__[0]}vision/doubled.py"
    namespace: dict[str, Any] = {}
    exec(compile("def doubled(x):\n    return x * 2\n", filename, "exec"), namespace)
    compiled = thunder.jit(namespace["doubled"])
    compiled(torch.ones(2))
    source = thunder.last_traces(compiled)[0].bound_symbols[0].source
    assert source is not None
    assert (source.filename, source.lineno) == (filename, 2)
