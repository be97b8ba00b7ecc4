"""With symbolic values, a program is guarded against keys that a mapping from outside lacks in the traced call."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch

import thunder_core as thunder


class Computing(dict[Any, Any]):
    """A dict that computes the values of missing keys, and does not store them."""

    def __missing__(self, key: Any) -> list[Any]:
        return [key]


KEYS: tuple[Any, ...] = ("z", 3, (1, "z"), None, torch.float32)
PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[], Any]]] = {
    "default factory": (lambda table, key, x: table[key].append(x), lambda: defaultdict(list)),
    "counter": (lambda table, key, x: table.update({key: table[key] + 1}), Counter),
    "missing": (lambda table, key, x: table.update({key: [*table[key], x]}), Computing),
    "setdefault": (lambda table, key, x: table.setdefault(key, []).append(x), dict),
    "get": (lambda table, key, x: table.update({key: (*table.get(key, ()), x)}), dict),
    "in": (lambda table, key, x: table.update({key: [*table[key], x] if key in table else [x]}), dict),
}


@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_key_that_is_missing_in_the_first_call(name, cache):
    function, make = PROGRAMS[name]
    for key in KEYS:
        compiled = thunder.jit(lambda table, x, key=key: (function(table, key, x), x + 1)[1], cache=cache)
        expected, found = make(), make()
        for number in range(3):
            x = torch.full((2,), float(number))
            function(expected, key, x)
            compiled(found, x)
        assert str(found) == str(expected), key
