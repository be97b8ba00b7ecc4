"""Callable objects that are not Python functions are guarded: if a program calls another object, it is traced again."""

from __future__ import annotations

import functools
import operator
from typing import Any

import pytest
import torch

import thunder_core as thunder

CALLED: dict[str, tuple[Any, Any]] = {
    "an overload": (torch.ops.aten.sin.default, torch.ops.aten.cos.default),
    "an operator": (torch.ops.aten.sin, torch.ops.aten.cos),
    "a function of C": (torch.sin, torch.cos),
    "a method of C": (torch.Tensor.sin, torch.Tensor.cos),
    "a getter of items": (operator.itemgetter(0), operator.itemgetter(1)),
    "a getter of attributes": (operator.attrgetter("T"), operator.attrgetter("real")),
    "a caller of methods": (operator.methodcaller("sin"), operator.methodcaller("cos")),
    "a cached function": (functools.lru_cache(lambda x: x.sin()), functools.lru_cache(lambda x: x.cos())),
}
HELD: dict[str, Any] = {}


@pytest.mark.parametrize("name", CALLED)
def test_called_object_is_guarded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.linspace(-1.0, 1.0, 12).view(3, 4)
    compiled = thunder.jit(lambda x: HELD["function"](x) * 1)
    for function in CALLED[name]:
        monkeypatch.setitem(HELD, "function", function)
        torch.testing.assert_close(compiled(x), function(x))
    assert thunder.cache_misses(compiled) == 2
