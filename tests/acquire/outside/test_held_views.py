"""Views of dicts that are held outside of the program, and read after the dict has changed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import thunder_core as thunder

READS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "list of keys": ("keys", list),
    "length": ("keys", len),
    "key in": ("keys", lambda view: ("b" in view, "z" in view)),
    "last key": ("keys", lambda view: next(reversed(view))),
    "sum of values": ("values", sum),
    "items": ("items", lambda view: [value for _, value in view]),
    "item in": ("items", lambda view: ("a", 1) in view),
    "comparison": ("keys", lambda view: view == {"a", "b"}),
    "union": ("keys", lambda view: sorted(view | {"x"})),
}


@pytest.mark.filterwarnings("ignore::thunder_core.errors.RecompileWarning")
@pytest.mark.parametrize("kind", [dict, OrderedDict])
@pytest.mark.parametrize("name", READS)
def test_a_held_view_is_read_as_it_is_at_each_call(kind: type[dict[str, int]], name: str) -> None:
    method, read = READS[name]
    mapping = kind(a=1, b=2)
    view = getattr(mapping, method)()

    def program(x: Tensor) -> tuple[Tensor, Any]:
        return x * 2, read(view)

    compiled = thunder.jit(program, executors=("torch",))
    x = torch.ones(2)
    assert compiled(x)[1] == program(x)[1]
    for change in (lambda: mapping.update(z=3), lambda: mapping.update(a=5), lambda: mapping.pop("b")):
        change()
        assert compiled(x)[1] == program(x)[1]


def test_a_new_order_of_an_ordered_dict_is_seen_in_its_view() -> None:
    mapping = OrderedDict(a=1, b=2)
    view = mapping.keys()
    compiled = thunder.jit(lambda x: (x * 2, list(view)), executors=("torch",))
    assert compiled(torch.ones(2))[1] == ["a", "b"]
    mapping.move_to_end("a")
    assert compiled(torch.ones(2))[1] == ["b", "a"]
