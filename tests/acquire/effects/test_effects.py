"""Writes to outside objects: tracing leaves no write behind, and each call has the effects of an eager call."""

from __future__ import annotations

import collections
import contextlib
import heapq
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import thunder_core as thunder
from tests.described import plain_data
from thunder_core.foundation.errors import CannotReplay, DataDependent
from thunder_core.frontend.acquire.outside.effects import EffectLog
from thunder_core.frontend.acquire.outside.paths import Path

COUNT = 0
X = torch.ones(2)
LIGATURE = "\ufb01"  # in source code, this identifier means `fi`


class Box:
    """An object that programs write to."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self.table: dict[str, Any] = {"kept": 1}
        self.seen: set[int] = set()
        self.last: Any = None
        self.queue: collections.deque[int] = collections.deque([1, 2])


def append(box: Box, x: Tensor) -> Tensor:
    box.items.append(x * 2)
    return x


def set_attribute(box: Box, x: Tensor) -> Tensor:
    box.last = x + 1
    return box.last * 2


def replace_attribute_twice(box: Box, x: Tensor) -> Tensor:
    box.last = 1
    box.last = [x, x + 1]
    return x


def delete_attribute(box: Box, x: Tensor) -> Tensor:
    del box.last
    return x


def set_items(box: Box, x: Tensor) -> Tensor:
    box.table["new"] = {"x": x}
    box.table.update(other=3)
    del box.table["kept"]
    return x


def add_members(box: Box, x: Tensor) -> Tensor:
    box.seen.add(5)
    box.seen |= {6, 7}
    return x


def rotate(box: Box, x: Tensor) -> Tensor:
    box.queue.append(3)
    box.queue.popleft()
    return x


def extend_and_pop(box: Box, x: Tensor) -> Tensor:
    box.items.extend([1, 2, x])
    box.items.pop(0)
    box.items += [4]
    return x


def new_attribute(box: Box, x: Tensor) -> Tensor:
    box.fresh = Box()  # type: ignore[attr-defined]
    box.fresh.items.append(x)  # type: ignore[attr-defined]
    return x


def attribute_for_a_while(box: Box, x: Tensor) -> Tensor:
    box.passing = x  # type: ignore[attr-defined]
    y = box.passing * 2  # type: ignore[attr-defined]
    del box.passing  # type: ignore[attr-defined]
    box.last = 3
    del box.last
    return y


def new_defaultdict(box: Box, x: Tensor) -> Tensor:
    box.last = collections.defaultdict(list)
    return x


def in_place(box: Box, x: Tensor) -> Tensor:
    box.items.append(x.add_(1))
    return x


def attributes_that_source_code_normalizes(box: Box, x: Tensor) -> Tensor:
    for value, name in enumerate((LIGATURE, "__debug__", "e\u0301")):
        setattr(box, name, x + value)
    delattr(box, "e\u0301")
    return x * getattr(box, LIGATURE)


PROGRAMS: list[Callable[[Box, Tensor], Tensor]] = [
    append,
    set_attribute,
    replace_attribute_twice,
    delete_attribute,
    set_items,
    add_members,
    rotate,
    extend_and_pop,
    new_attribute,
    attribute_for_a_while,
    new_defaultdict,
    in_place,
    attributes_that_source_code_normalizes,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_compiled_calls_have_the_effects_of_eager_calls(program: Callable[[Box, Tensor], Tensor]) -> None:
    compiled = thunder.jit(program)
    for _ in range(2):
        ours, eager = Box(), Box()
        x, y = torch.ones(2), torch.ones(2)
        assert plain_data(compiled(ours, x)) == plain_data(program(eager, y))
        assert plain_data(ours) == plain_data(eager)
        assert plain_data(x) == plain_data(y)
    assert thunder.cache_hits(compiled) == 1


def test_program_that_is_refused_halfway_leaves_no_write() -> None:
    def program(box: Box, x: Tensor) -> Tensor:
        box.items.append(x)
        box.last = x
        box.table["new"] = x
        return x if x.sum() > 0 else -x

    box = Box()
    with pytest.raises(DataDependent):
        thunder.jit(program, data_dependent="error")(box, torch.ones(2))
    assert plain_data(box) == plain_data(Box())


def test_globals_are_written_at_each_call() -> None:
    def program(x: Tensor) -> Tensor:
        global COUNT
        COUNT += 1
        return x + COUNT

    compiled = thunder.jit(program)
    start = COUNT
    assert [compiled(torch.zeros(1)).item() for _ in range(3)] == [start + 1, start + 2, start + 3]
    assert start + 3 == COUNT


class Counter(nn.Module):
    """A module with state."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.register_buffer("mean", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.mean = 0.5 * self.mean + x
        return x * self.calls


def test_modules_count_and_replace_buffers() -> None:
    ours, eager = Counter(), Counter()
    compiled = thunder.jit(ours)
    for _ in range(3):
        x = torch.ones(2)
        assert torch.equal(compiled(x), eager(x))
        assert ours.calls == eager.calls
        assert torch.equal(ours.mean, eager.mean)
        assert list(ours.state_dict()) == ["mean"]


def test_batch_norm_updates_its_statistics() -> None:
    ours, eager = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    compiled = thunder.jit(ours)
    for step in range(3):
        x = torch.arange(12.0).reshape(4, 3) * (step + 1)
        torch.testing.assert_close(compiled(x), eager(x))
    for name, value in eager.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value)


def test_a_list_that_grows_and_is_not_read_does_not_lead_to_another_trace() -> None:
    box = Box()
    compiled = thunder.jit(append)
    for step in range(3):
        compiled(box, torch.ones(2) * step)
    assert plain_data(box.items) == [[0.0, 0.0], [2.0, 2.0], [4.0, 4.0]]
    assert thunder.cache_misses(compiled) == 1


def reads_after_writing(box: Box, x: Tensor) -> Tensor:
    box.items.append(x)
    return x * len(box.items) + box.items[0]


def test_read_after_a_write_is_guarded_by_the_earlier_value() -> None:
    ours, eager = Box(), Box()
    compiled = thunder.jit(reads_after_writing)
    for step in range(3):
        x = torch.ones(2) * step
        assert torch.equal(compiled(ours, x), reads_after_writing(eager, x))
    assert plain_data(ours) == plain_data(eager)
    assert thunder.cache_misses(compiled) == 3


def test_undoing_a_global_leaves_the_rest_of_the_module_alone() -> None:
    """A change that another thread makes to the module during tracing is kept."""
    namespace = {"count": 1, "other": 2}
    log = EffectLog()
    log.note_variable_write(Path(None, "globals", "module", namespace), "__setitem__", "count", 5)
    namespace.update(count=5, meanwhile=3)
    log.undo()
    assert namespace == {"count": 1, "other": 2, "meanwhile": 3}


class Fixed:
    """An object that accepts only one attribute."""

    __slots__ = ("size",)


def heaped(items: list[Any]) -> None:
    heapq.heappush(items, object())


def globally(_: Any) -> None:
    global NEVER
    del NEVER  # type: ignore[name-defined]


FAILING: dict[str, tuple[Callable[[Any], object], Callable[[], Any]]] = {
    "pop of nothing": (lambda items: items.pop(), list),
    "pop of a key": (lambda table: table.pop("a"), dict),
    "a deleted item": (lambda table: operator.delitem(table, "a"), dict),
    "a key without a hash": (lambda table: operator.setitem(table, {}, 1), dict),
    "an index beyond": (lambda items: operator.setitem(items, 3, 1), lambda: [1]),
    "what is not there": (lambda items: items.remove(3), lambda: [1]),
    "no member": (lambda items: items.remove(3), lambda: {1}),
    "no attribute": (lambda box: setattr(box, "other", 1), Fixed),
    "a deleted attribute": (lambda box: delattr(box, "size"), Fixed),
    "a class in C": (lambda items: operator.iadd(items, 3), lambda: [1]),
    "a deleted global": (globally, list),
}


@pytest.mark.parametrize("name", FAILING)
def test_a_write_that_raises_is_no_effect(name: str) -> None:
    write, make = FAILING[name]

    def program(x: Tensor, owner: Any) -> Tensor:
        try:
            write(owner)
        except (LookupError, TypeError, ValueError, AttributeError, NameError):
            return x * 2
        return x

    compiled, owner = thunder.jit(program), make()
    for _ in range(2):
        assert torch.equal(compiled(X, owner), X * 2)
    assert thunder.cache_misses(compiled) == 1
    assert repr(owner) == repr(make()) or isinstance(owner, Fixed)


def test_write_that_succeeds_at_a_later_call_is_made() -> None:
    def program(x: Tensor, box: Any, table: dict[str, int]) -> Tensor:
        box.last = 1
        try:
            del table["a"], box.first
        except (KeyError, AttributeError):
            return x * 2
        return x

    compiled, box = thunder.jit(program), Box()
    assert torch.equal(compiled(X, box, {}), X * 2) and box.last == 1
    assert torch.equal(compiled(X, box, {"a": 1}), X * 2)
    box.first = 1  # type: ignore[attr-defined]
    table = {"a": 1}
    assert torch.equal(compiled(X, box, table), X)
    assert not table and not hasattr(box, "first")


def test_write_before_a_failing_write_is_kept() -> None:
    def program(x: Tensor, items: list[Any]) -> Tensor:
        items.append(x * 3)
        try:
            items < 3  # type: ignore[operator]  # noqa: B015
        except TypeError:
            items.append(1)
        return x * 2

    compiled = thunder.jit(program)
    for step in range(2):
        items: list[Any] = []
        compiled(X * step, items)
        assert torch.equal(items[0], X * step * 3) and items[1:] == [1]


@pytest.mark.parametrize("write", [lambda items: items.sort(), heaped])
def test_write_that_may_fail_halfway_is_refused(write: Callable[[Any], object]) -> None:
    def program(x: Tensor, items: list[Any]) -> Tensor:
        with contextlib.suppress(TypeError):
            write(items)
        return x

    items = [3, 2, "a"]
    with pytest.raises(CannotReplay, match="raises while it changes args"):
        thunder.jit(program, data_dependent="error")(X, items)
    assert items == [3, 2, "a"]


class First:
    """An index of a user-defined class."""

    def __index__(self) -> int:
        return 0


def test_item_written_with_an_index_of_a_user_class_is_replayed() -> None:
    def program(x: Tensor, items: list[int], index: First) -> Tensor:
        items[index] = 7
        return x * items[0]

    compiled = thunder.jit(program)
    for first in (1, 5):
        items = [first, 2]
        assert torch.equal(compiled(X, items, First()), X * 7) and items == [7, 2]


def test_variables_may_have_the_names_of_functions_that_the_epilogue_calls() -> None:
    def program(new: Tensor, fill: Tensor, restore: Tensor, become: Tensor, log: list[Any]) -> Tensor:
        box = Box()
        box.items = [new, fill]
        log.append(box)
        become.label = collections.Counter(a=2)  # type: ignore[attr-defined]
        log.append((restore, become))
        return new * fill + restore * become

    tensors = [torch.full((2,), float(number)) for number in range(1, 5)]
    compiled, log = thunder.jit(program), list[Any]()
    for _ in range(2):
        assert compiled(*tensors, log).tolist() == [14, 14]
    assert thunder.cache_misses(compiled) == 1
    for box, (restore, become) in (log[:2], log[2:]):
        assert box.items[0] is tensors[0] and box.items[1] is tensors[1]
        assert restore is tensors[2] and become.label == collections.Counter(a=2)


def test_slots_and_properties_with_names_that_source_code_normalizes_are_read() -> None:
    slots = type("Slots", (), {"__slots__": (LIGATURE, "fi")})
    instance = slots()
    setattr(slots, f"{LIGATURE}1", property(lambda self: self.fi + 1))
    compiled = thunder.jit(lambda x, owner: x * getattr(owner, LIGATURE) + getattr(owner, f"{LIGATURE}1"))
    for number in (2.0, 3.0):
        setattr(instance, LIGATURE, number)
        instance.fi = 7.0
        assert torch.equal(compiled(X, instance), X * number + 8)
