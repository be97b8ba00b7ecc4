"""`functools.wraps` applied to PyTorch's operators, in a program and in transforms of operators."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, vmap
from torch.func import grad

import thunder_core as thunder

X = torch.linspace(-1.0, 2.0, 12).view(4, 3)
OPERATORS: dict[str, Any] = {"sine": torch.ops.aten.sin.default}


def wrapped(x: Tensor) -> Tensor:
    @functools.wraps(OPERATORS["sine"])
    def run(x: Tensor) -> Tensor:
        result: Tensor = OPERATORS["sine"](x) * len(run.__name__)
        return result

    return run(x)


PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "wraps": wrapped,
    "vmap": lambda x: vmap(OPERATORS["sine"])(x),
    "vmap of grad": lambda x: vmap(vmap(grad(OPERATORS["sine"])))(x),
    "packet": lambda x: vmap(torch.ops.aten.sin)(x),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_operator_may_not_have_been_called_before(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    vars(torch.ops.aten.sin.default).pop("_namespace", None)  # the attribute that an operator has after its first call
    program = PROGRAMS[name]
    compiled = thunder.jit(program)
    for _ in range(2):
        torch.testing.assert_close(compiled(X), program(X))
    assert thunder.cache_misses(compiled) == 1
    monkeypatch.setitem(OPERATORS, "sine", torch.ops.aten.cos.default)
    torch.testing.assert_close(compiled(X), program(X))
