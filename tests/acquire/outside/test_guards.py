"""Outside values that a trace reads are guarded: after a change the result matches eager, with the reason reported."""

from __future__ import annotations

import builtins
import collections
import contextlib
import dataclasses
import enum
import fractions
import functools
import math
import operator
import sys
import types
from collections.abc import Callable, Sized
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend

import thunder_core as thunder
from thunder_core.frontend.acquire.outside.guards.classes import DefinesNone, KeepsCall, OverridesNone
from thunder_core.frontend.acquire.outside.guards.containers import ConstantItems, NotStored
from thunder_core.frontend.acquire.outside.guards.guard import Guard
from thunder_core.frontend.acquire.outside.guards.identities import AllDifferent, DifferentFrom, SameAs
from thunder_core.frontend.acquire.outside.guards.module_hooks import NoHooks, NoOtherHooks
from thunder_core.frontend.acquire.outside.guards.objects import CanDelete, HasCode, Misses, Unbound
from thunder_core.frontend.acquire.outside.guards.tensors import HasFact, NoAccumulationHooks, SharesStorage
from thunder_core.frontend.acquire.outside.guards.values import Truth, Values
from thunder_core.tracing.extension.transform import Transform
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.library.capturing_hooks import LIBRARY

X = torch.tensor([1.0, -2.0, 3.0])
NUMBER = 2
ITEMS = [1, 2]
TABLE = {"a": 1}
HOOK: Callable[[int], int] = abs


@dataclasses.dataclass(eq=False)
class Config:
    """A plain object that programs read."""

    size: int = 2
    names: list[str] = dataclasses.field(default_factory=lambda: ["a"])
    inner: Any = None
    weight: Tensor = dataclasses.field(default_factory=lambda: torch.ones(3))

    factor = 3

    def scaled(self, x: Tensor) -> Tensor:
        """Return the value times the scale."""
        return x * self.factor

    stored_size = property(operator.attrgetter("size"))

    @property
    def twice(self) -> int:
        """Return twice the scale."""
        return self.size * 2


class Equal(Config):
    """An object that equals every object of its class."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Equal)

    def __hash__(self) -> int:
        return 1


class Slotted:
    """An object without a `__dict__`."""

    __slots__ = ("size",)

    def __init__(self, size: int) -> None:
        self.size = size


class Letter(enum.StrEnum):
    """An enumeration whose members are equal to strings."""

    A = "a"


class Count(int):
    """A number of a subclass of int."""


class Items(list[int]):
    """A list with attributes."""

    change: Any = None


def with_own_method() -> Items:
    """Return a list that stores a bound method of its own."""
    items = Items([1])
    items.change = items.append
    return items


@dataclasses.dataclass(frozen=True)
class Case:
    """A program, its arguments, and a change of the outside world that the program must notice."""

    program: Callable[..., Any]
    make: Callable[[], tuple[Any, ...]]
    change: Callable[..., Any]
    reason: str


def module_with(**attributes: Any) -> types.ModuleType:
    """Return a new module, so that tests do not affect each other."""
    module = types.ModuleType("outside")
    vars(module).update(attributes)
    return module


def set_item(container: Any, key: Any, value: Any) -> None:
    container[key] = value


def reads_default(x: Tensor, n: int = 2, *, m: int = 3) -> Tensor:
    return x * n + m


def calls_default(x: Tensor) -> Tensor:
    return reads_default(x)


def nested(value: int) -> Callable[..., Any]:
    def inner(x: Tensor) -> Tensor:
        return x * value

    return inner


def caught(table: dict[str, int]) -> int:
    try:
        return table["b"]
    except KeyError:
        return -1


def caught_index(items: list[int]) -> int:
    try:
        return items[1]
    except IndexError:
        return -1


CASES: dict[str, Case] = {
    "int": Case(
        lambda x, c: x * c.size, lambda: (X, Config()), lambda x, c: setattr(c, "size", 5), "size: was 2, is 5"
    ),
    "int to bool": Case(
        lambda x, c: x * c.size,
        lambda: (X, Config(size=1)),
        lambda x, c: setattr(c, "size", True),
        "size: was 1, is True",
    ),
    "int to float": Case(
        lambda x, c: (x * c.size, type(c.size)),
        lambda: (X, Config()),
        lambda x, c: setattr(c, "size", 2.0),
        "was 2, is 2.0",
    ),
    "str to an equal member of an enumeration": Case(
        lambda x, c: (x * 2, repr(c.size)),
        lambda: (X, Config(size="a")),  # type: ignore[arg-type]
        lambda x, c: setattr(c, "size", Letter.A),
        "size: was 'a', is <Letter.A: 'a'>",
    ),
    "number of a subclass of int": Case(
        lambda x, c: x * c.size,
        lambda: (X, Config(size=Count(2))),
        lambda x, c: setattr(c, "size", Count(3)),
        "size: had the value 2",
    ),
    "range of equal items": Case(
        lambda x, c: x * c.size.stop,  # type: ignore[attr-defined]
        lambda: (X, Config(size=range(0, 3, 2))),  # type: ignore[arg-type]
        lambda x, c: setattr(c, "size", range(0, 4, 2)),
        "size: was range(0, 3, 2)",
    ),
    "value of a member of an enumeration": Case(
        lambda x, kind: x * len(kind.A.value),
        lambda: (X, enum.Enum("Lists", {"A": [1]})),
        lambda x, kind: kind.A.value.append(2),
        "had 1 items",
    ),
    "order of a set": Case(
        lambda x, items: [x * item for item in items],
        lambda: (X, {8, 16}),
        lambda x, items: (items.clear(), items.update((16, 8))),
        "was {",
    ),
    "equal key of another type": Case(
        lambda x, d: [repr(key) for key in d],
        lambda: (X, {1: 2}),
        lambda x, d: (d.clear(), d.update({True: 2})),
        "had the keys [1]",
    ),
    "equal key that is a member of an enumeration": Case(
        lambda x, d: [repr(key) for key in d],
        lambda: (X, {"a": 2}),
        lambda x, d: (d.clear(), d.update({Letter.A: 2})),
        "had the keys ['a']",
    ),
    "C method stored in its own object": Case(
        lambda x, items: (x * 2, items.change(1)),
        lambda: (X, with_own_method()),
        lambda x, items: setattr(items, "change", items.count),
        "change",
    ),
    "class registered": Case(
        lambda x, c: x * (2 if isinstance(c, Sized) else 3),
        lambda: (X, type("Box", (), {})()),
        lambda x, c: Sized.register(type(c)),
        "had no subclass Box",
    ),
    "member of an enumeration of C": Case(
        lambda x, c: x * int(c.size),
        lambda: (X, Config(size=SDPBackend.MATH)),  # type: ignore[arg-type]
        lambda x, c: setattr(c, "size", SDPBackend.FLASH_ATTENTION),
        "size: was SDPBackend.MATH",
    ),
    "negative zero": Case(
        lambda x, c: x / c.size,
        lambda: (X, Config(size=0.0)),
        lambda x, c: setattr(c, "size", -0.0),
        "was 0.0, is -0.0",
    ),
    "None": Case(
        lambda x, c: x if c.inner is None else -x,
        lambda: (X, Config()),
        lambda x, c: setattr(c, "inner", []),
        "was None",
    ),
    "bytes that change in place": Case(
        lambda x, c: x * c.size[0],
        lambda: (X, Config(size=bytearray(b"a"))),  # type: ignore[arg-type]
        lambda x, c: c.size.__setitem__(0, 98),
        "size: had the state b'a'",
    ),
    "property": Case(
        lambda x, c: x * c.twice, lambda: (X, Config()), lambda x, c: setattr(c, "size", 4), "size: was 2, is 4"
    ),
    "property with a getter in C": Case(
        lambda x, c: x * c.stored_size, lambda: (X, Config()), lambda x, c: setattr(c, "size", 4), "size: was 2, is 4"
    ),
    "class attribute": Case(
        lambda x, c: x * c.factor, lambda: (X, Config()), lambda x, c: setattr(c, "factor", 7), "factor: was 3, is 7"
    ),
    "method replaced on the instance": Case(
        lambda x, c: c.scaled(x), lambda: (X, Config()), lambda x, c: setattr(c, "scaled", torch.neg), "scaled"
    ),
    "type": Case(
        lambda x, c: x * 2 if isinstance(c.inner, list) else x,
        lambda: (X, Config(inner=[])),
        lambda x, c: setattr(c, "inner", ()),
        "inner: was an object of class list, is a tuple",
    ),
    "list item": Case(
        lambda x, items: x * items[0], lambda: (X, [2, 3]), lambda x, items: set_item(items, 0, 9), "[0]: was 2, is 9"
    ),
    "last list item": Case(
        lambda x, items: x * items[-1], lambda: (X, [2, 3]), lambda x, items: items.append(4), "had 2 items"
    ),
    "list length": Case(
        lambda x, items: x * len(items), lambda: (X, [2, 3]), lambda x, items: items.append(1), "had 2 items"
    ),
    "list truth": Case(
        lambda x, items: x if items else -x, lambda: (X, [2]), lambda x, items: items.clear(), "had 1 items"
    ),
    "iteration": Case(
        lambda x, items: sum((x * i for i in items), x),
        lambda: (X, [2]),
        lambda x, items: items.append(5),
        "had 1 items",
    ),
    "membership": Case(
        lambda x, items: x if 3 in items else -x, lambda: (X, [2]), lambda x, items: items.append(3), "had 1 items"
    ),
    "set": Case(
        lambda x, items: x if 3 in items else -x, lambda: (X, {2}), lambda x, items: items.add(3), "did not contain 3"
    ),
    "member": Case(
        lambda x, items: x if 3 in items else -x, lambda: (X, {3}), lambda x, items: items.remove(3), "contained 3"
    ),
    "set of others": Case(
        lambda x, items: x if (3, "a") in items else -x,
        lambda: (X, {(3, "a")}),
        lambda x, items: items.clear(),
        "was {",
    ),
    "set of objects": Case(
        lambda x, items: x if Config in items else -x,
        lambda: (X, {Slotted}),
        lambda x, items: items.add(Config),
        "did not contain <class",
    ),
    "dict value": Case(
        lambda x, d: x * d["a"], lambda: (X, {"a": 2}), lambda x, d: d.update(a=3), "['a']: was 2, is 3"
    ),
    "dict membership": Case(
        lambda x, d: x if "b" in d else -x,
        lambda: (X, {"a": 2}),
        lambda x, d: d.update(b=3),
        "had none of the keys 'b'",
    ),
    "identity": Case(
        lambda x, c: x * (id(c.inner) % 1000003),
        lambda: (X, Config(inner=[])),
        lambda x, c: setattr(c, "inner", [*c.inner]),
        "inner: was a specific list",
    ),
    "a special method that comes later": Case(
        lambda x, c: x if c else -x,
        lambda: (X, type("Made", (Config,), {})()),
        lambda x, c: setattr(type(c), "__bool__", lambda self: False),
        "had the special methods",
    ),
    "a key that is an object": Case(
        lambda x, d: x * sum(key.size * value for key, value in d.items()),
        lambda: (X, {Config(): 3}),
        lambda x, d: setattr(next(iter(d)), "size", 4),
        "list(args[1])[0].size: was 2, is 4",
    ),
    "a key that is equal to another": Case(
        lambda x, d: x * next(iter(d)).size,
        lambda: (X, {Equal(): 3}),
        lambda x, d: (d.clear(), d.update({Equal(5): 3})),
        "list(args[1])[0].size: was 2, is 5",
    ),
    "an object in a key": Case(
        lambda x, d: x * list(d)[0][0].size,  # noqa: RUF015
        lambda: (X, {(Config(), 1): 3}),
        lambda x, d: setattr(next(iter(d))[0], "size", 4),
        "list(args[1])[0][0].size: was 2, is 4",
    ),
    "a member that is an object": Case(
        lambda x, items: x * sum(member.size for member in items),
        lambda: (X, {Config(), Config()}),
        lambda x, items: setattr(next(iter(items)), "size", 4),
        "a member of args[1].size: was 2, is 4",
    ),
    "a member that is equal to another": Case(
        lambda x, items: x * next(iter(items)).size,
        lambda: (X, {Equal()}),
        lambda x, items: (items.clear(), items.add(Equal(5))),
        "had 1 specific members",
    ),
    "membership of a tensor": Case(
        lambda x, d: x if x in d else -x, lambda: (X, {}), lambda x, d: d.update({x: 3}), "had no item for args[0]"
    ),
    "item of a tensor": Case(
        lambda x, d: x * d[x], lambda: (X, {X: 2}), lambda x, d: d.update({x: 3}), "args[1][args[0]]: was 2, is 3"
    ),
    "missing key": Case(
        lambda x, d: x * caught(d), lambda: (X, {"a": 2}), lambda x, d: d.update(b=3), "had none of the keys 'b'"
    ),
    "missing index": Case(
        lambda x, items: x * caught_index(items), lambda: (X, [1]), lambda x, items: items.append(7), "had 1 items"
    ),
    "dict get": Case(
        lambda x, d: x * d.get("b", 1), lambda: (X, {"a": 2}), lambda x, d: d.update(b=3), "had none of the keys 'b'"
    ),
    "dict order": Case(
        lambda x, d: [x * v for v in d.values()],
        lambda: (X, {"a": 2, "b": 3}),
        lambda x, d: d.update(a=d.pop("a")),
        "had the keys",
    ),
    "OrderedDict": Case(
        lambda x, d: x * next(iter(d.values())),
        lambda: (X, collections.OrderedDict(a=2, b=3)),
        lambda x, d: d.move_to_end("a"),
        "had the keys",
    ),
    "missing attribute": Case(
        lambda x, c: x if hasattr(c, "late") else -x, lambda: (X, Config()), lambda x, c: setattr(c, "late", 1), "late"
    ),
    "getattr with default": Case(
        lambda x, c: x * getattr(c, "late", 1), lambda: (X, Config()), lambda x, c: setattr(c, "late", 4), "late"
    ),
    "slots": Case(
        lambda x, s: x * s.size, lambda: (X, Slotted(2)), lambda x, s: setattr(s, "size", 6), "size: was 2, is 6"
    ),
    "tensor shape": Case(
        lambda x, c: c.weight.sum() + x,
        lambda: (X, Config()),
        lambda x, c: setattr(c, "weight", torch.ones(3, 2)),
        "f32[3, 2]",
    ),
    "tensor dtype": Case(
        lambda x, c: c.weight * x,
        lambda: (X, Config()),
        lambda x, c: setattr(c, "weight", torch.ones(3).double()),
        "f64[3]",
    ),
    "tensor strides": Case(
        lambda x, c: c.weight.is_contiguous() and x,
        lambda: (X, Config(weight=torch.ones(3, 3))),
        lambda x, c: setattr(c, "weight", torch.ones(3, 3).T),
        "was",
    ),
    "sparse tensor": Case(
        lambda x, c: c.weight.to_dense() + (x if c.weight.dtype is torch.float32 else -x),
        lambda: (X, Config(weight=torch.eye(3).to_sparse())),
        lambda x, c: setattr(c, "weight", torch.eye(3).double().to_sparse()),
        "was f32[3, 3] in layout torch.sparse_coo, is ",
    ),
    "requires_grad": Case(
        lambda x, c: x if c.weight.requires_grad else -x,
        lambda: (X, Config()),
        lambda x, c: c.weight.requires_grad_(),
        "grad",
    ),
    "module attribute": Case(
        lambda x, m: x * m.n, lambda: (X, module_with(n=2)), lambda x, m: setattr(m, "n", 3), "n: was 2, is 3"
    ),
    "function in a module": Case(
        lambda x, m: m.f(x), lambda: (X, module_with(f=torch.neg)), lambda x, m: setattr(m, "f", torch.abs), "was neg"
    ),
    "closure": Case(nested(2), lambda: (X,), lambda x: None, ""),
    "nested objects": Case(
        lambda x, c: x * c.inner.inner.size,
        lambda: (X, Config(inner=Config(inner=Config(size=7)))),
        lambda x, c: setattr(c.inner.inner, "size", 8),
        "inner.inner.size: was 7, is 8",
    ),
    "object exchanged": Case(
        lambda x, c: x * c.inner.size,
        lambda: (X, Config(inner=Config())),
        lambda x, c: setattr(c, "inner", Config(size=9)),
        "size",
    ),
    "aliases parted": Case(lambda x, a, b: x if a is b else -x, lambda: (X, *[Config()] * 2), lambda x, a, b: None, ""),
    "enumerate": Case(
        lambda x, items: [x * i * v for i, v in enumerate(items)],
        lambda: (X, [2, 3]),
        lambda x, items: set_item(items, 1, 5),
        "[1]",
    ),
    "unpacking": Case(
        lambda x, items: x * operator.sub(*items), lambda: (X, [2, 3]), lambda x, items: items.reverse(), "[0]"
    ),
    "deque": Case(
        lambda x, q: x * q[0], lambda: (X, collections.deque([2])), lambda x, q: q.appendleft(5), "had 1 items"
    ),
    "frozenset": Case(
        lambda x, c: x if "b" in c.inner else -x,
        lambda: (X, Config(inner=frozenset("a"))),
        lambda x, c: setattr(c, "inner", frozenset("b")),
        "did not contain 'b'",
    ),
}


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.reason])
def test_a_change_is_noticed_and_explained(name: str) -> None:
    case = CASES[name]
    arguments = case.make()
    compiled = thunder.jit(case.program)

    def agree() -> None:
        ours, eager = compiled(*arguments), case.program(*arguments)
        assert repr(ours) == repr(eager)

    agree()
    agree()
    assert thunder.cache_misses(compiled) == 1, thunder.recompile_reasons(compiled)
    case.change(*arguments)
    agree()
    assert thunder.cache_misses(compiled) == 2
    assert case.reason in thunder.recompile_reasons(compiled)[-1]


def test_changed_closure_is_noticed() -> None:
    value = 5

    def foo(x: Tensor) -> Tensor:
        return x * value

    compiled = thunder.jit(foo)
    assert torch.equal(compiled(X), X * 5)
    value = 7
    assert torch.equal(compiled(X), X * 7)
    assert thunder.recompile_reasons(compiled) == ["closure value of foo: was 5, is 7"]


def test_changed_aliasing_is_noticed() -> None:
    compiled = thunder.jit(CASES["aliases parted"].program)
    one, two = Config(), Config()
    assert torch.equal(compiled(X, one, one), X)
    assert torch.equal(compiled(X, one, two), -X)


def test_changed_global_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = thunder.jit(lambda x: x * NUMBER + HOOK(-1) + len(ITEMS) + TABLE["a"])
    assert torch.equal(compiled(X), X * 2 + 4)
    for name, value, expected in (
        ("NUMBER", 3, X * 3 + 4),
        ("HOOK", lambda n: 10, X * 3 + 13),
        ("ITEMS", [1], X * 3 + 12),
        ("TABLE", {"a": 5}, X * 3 + 16),
    ):
        monkeypatch.setitem(globals(), name, value)
        assert torch.equal(compiled(X), expected), name
    assert thunder.cache_misses(compiled) == 5


def test_replaced_or_shadowed_builtin_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = thunder.jit(lambda x: x * abs(-3))
    assert torch.equal(compiled(X), X * 3)
    monkeypatch.setattr(builtins, "abs", lambda value: 7)
    assert torch.equal(compiled(X), X * 7)
    monkeypatch.undo()
    assert torch.equal(compiled(X), X * 3)
    monkeypatch.setitem(globals(), "abs", lambda value: 8)
    assert torch.equal(compiled(X), X * 8)


def test_changed_default_of_a_function_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = thunder.jit(calls_default)
    assert torch.equal(compiled(X), X * 2 + 3)
    monkeypatch.setattr(reads_default, "__defaults__", (5,))
    assert torch.equal(compiled(X), X * 5 + 3)
    monkeypatch.setitem(reads_default.__kwdefaults__, "m", 9)
    assert torch.equal(compiled(X), X * 5 + 9)


def test_method_replaced_on_the_class_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = thunder.jit(lambda x, c: c.scaled(x))
    assert torch.equal(compiled(X, Config()), X * 3)
    monkeypatch.setattr(Config, "scaled", lambda self, x: -x)
    assert torch.equal(compiled(X, Config()), -X)
    assert "scaled" in thunder.recompile_reasons(compiled)[-1]


def test_property_replaced_on_the_class_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = thunder.jit(lambda x, c: x * c.twice)
    assert torch.equal(compiled(X, Config()), X * 4)
    monkeypatch.setattr(Config, "twice", property(lambda self: 100))
    assert torch.equal(compiled(X, Config()), X * 100)


def test_changed_state_of_the_process_is_noticed() -> None:
    weight = torch.ones(3, requires_grad=True)
    compiled = thunder.jit(lambda x: (x * weight, torch.zeros(2)))
    first, _ = compiled(X)
    assert first.requires_grad
    with torch.no_grad():
        assert not compiled(X)[0].requires_grad
    try:
        torch.set_default_dtype(torch.float64)
        assert compiled(X)[1].dtype is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    with torch.device("meta"):
        assert compiled(X)[1].device.type == "meta"
    assert compiled(X)[1].device.type == "cpu"


def test_replaced_submodule_and_switched_mode_are_noticed() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)).eval()
    compiled = thunder.jit(net)
    assert torch.equal(compiled(X), net(X))
    net[0] = nn.ReLU()
    assert torch.equal(compiled(X), X.relu())
    net.append(nn.Tanh())
    assert torch.equal(compiled(X), X.relu().tanh())
    del net[0]
    assert torch.equal(compiled(X), X.tanh())


def test_the_same_input_is_served_by_the_first_program_alone() -> None:
    compiled = thunder.jit(lambda x, n: x * n, cache="same input")
    for _ in range(2):
        assert torch.equal(compiled(X, 2), X * 2)
    with pytest.raises(thunder.ThunderError, match="was 2, is 3"):
        compiled(X, 3)
    assert thunder.cache_misses(compiled) == 1


def test_unread_keys_are_not_guarded() -> None:
    compiled = thunder.jit(lambda x, d: x * d["a"] * d.get("b", 1) if "c" not in d else x)
    table = {"a": 2}
    assert torch.equal(compiled(X, table), X * 2)
    table["z"] = 5
    assert torch.equal(compiled(X, table), X * 2)
    assert thunder.cache_misses(compiled) == 1


@pytest.mark.parametrize("value", [torch.float32, torch.device("cpu"), Letter.A, fractions.Fraction(1, 2), len])
def test_keys_that_are_not_looked_up_beside_a_class_are_not_guarded(value: object) -> None:
    """The table of copy.deepcopy has a key for each library that is imported, so it differs between processes."""
    table: dict[type, float] = {complex: 1.0}
    compiled = thunder.jit(lambda x: x * table.get(type(value), 2.0))
    assert torch.equal(compiled(X), X * 2)
    table[range] = 5.0
    assert torch.equal(compiled(X), X * 2)
    assert thunder.cache_misses(compiled) == 1
    table[type(value)] = 3.0
    assert torch.equal(compiled(X), X * 3)
    table[slice] = 5.0
    assert torch.equal(compiled(X), X * 3)
    assert thunder.cache_misses(compiled) == 2


def test_reason_names_keys_that_are_classes_and_numbers() -> None:
    compiled = thunder.jit(lambda x, table: x * len([*table]))
    for table in ({int: 1}, {float: 1, 2: 3}):
        compiled(X, table)
    assert thunder.recompile_reasons(compiled) == [
        "args[1]: had the keys [<class 'int'>], is a dict with the keys [<class 'float'>, 2]"
    ]


def test_classes_that_the_program_makes_are_looked_up() -> None:
    table: dict[type, float] = {complex: 1.0}

    def program(x: Tensor) -> Tensor:
        made = type("Made", (), {})
        return x * table.get(made, 2.0)

    compiled = thunder.jit(program)
    for _ in range(2):
        assert torch.equal(compiled(X), X * 2)
    assert thunder.cache_misses(compiled) == 1


def test_imports_inside_functions_are_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: Tensor) -> Tensor:
        import math

        return x * math.tau

    import math

    compiled = thunder.jit(program)
    assert torch.equal(compiled(X), X * math.tau)
    monkeypatch.setattr(math, "tau", 2.0)
    assert torch.equal(compiled(X), X * 2.0)


@pytest.mark.parametrize(
    "kind",
    [
        *(
            SameAs,
            NoHooks,
            NoOtherHooks,
            Truth,
            Values,
            ConstantItems,
            Misses,
            Unbound,
            NotStored,
            DefinesNone,
            OverridesNone,
            HasCode,
        ),
        *(KeepsCall, NoAccumulationHooks, SharesStorage),
    ],
)
def test_kind_of_guard_with_its_own_scene_is_needed(kind: type[Guard], monkeypatch: pytest.MonkeyPatch) -> None:
    """With the guard the change is noticed; without the guard it is not."""
    for broken in (False, True):
        if broken:
            monkeypatch.setattr(kind, "condition", lambda guard, subject, scope: "True")
        assert SCENES[kind]() is not broken


def aliases_parted() -> bool:
    compiled = thunder.jit(lambda x, a, b: x if a is b else -x)
    one = Config()
    return torch.equal(compiled(X, one, one), X) and torch.equal(compiled(X, one, Config()), -X)


def equals_made_one() -> bool:
    first, second, third = Config(1.0), Config(1.0), Config(1.0)
    compiled = thunder.jit(lambda x, a, b, c: x * (1 + (a == b) + 2 * (b in [c])))
    same = torch.equal(compiled(X, first, second, third), X)
    return same and torch.equal(compiled(X, first, first, first), X * 4)


def others_made_one() -> bool:
    compiled = thunder.jit(lambda x, a, b: x if a is b else -x)
    one = Config()
    return torch.equal(compiled(X, one, Config()), -X) and torch.equal(compiled(X, one, one), X)


def attribute_deleted_twice() -> bool:
    def program(owner: Config, total: Tensor) -> None:
        del owner.size
        total.add_(1)

    compiled, owner, total = thunder.jit(program), Config(), torch.zeros(1)
    compiled(owner, total)
    with contextlib.suppress(AttributeError):
        compiled(owner, total)
    return total.item() == 1


def variable_bound() -> bool:
    size = 1.0

    def set_size(value: float | None) -> None:
        nonlocal size
        size = value
        if value is None:
            del size

    def program(x: Tensor) -> Tensor:
        try:
            return x * size
        except NameError:
            return -x

    compiled = thunder.jit(program)
    set_size(None)
    compiled(X)
    set_size(3.0)
    return torch.equal(compiled(X), X * 3)


def offset_changed() -> bool:
    compiled = thunder.jit(lambda x: x * x.storage_offset())
    rows = torch.ones(2, 3)
    return torch.equal(compiled(rows[0]), rows[0] * 0) and torch.equal(compiled(rows[1]), rows[1] * 3)


def hook_added() -> bool:
    net = nn.Linear(3, 3)
    compiled = thunder.jit(net)
    compiled(X)
    net.register_forward_hook(lambda module, args, output: output * 2)
    return torch.equal(compiled(X), net(X))


def hook_added_to_the_librarys() -> bool:
    def capture(module: nn.Module, args: Any, output: Any) -> None:
        """Stand in for the hook by which transformers collects the outputs of modules."""

    capture.__module__ = LIBRARY
    net = nn.Linear(3, 3)
    net.register_forward_hook(capture)
    compiled = thunder.jit(net)
    compiled(X)
    net.register_forward_hook(lambda module, args, output: output * 2)
    return torch.equal(compiled(X), net(X))


def global_hook_added() -> bool:
    net = nn.Linear(3, 3)
    compiled = thunder.jit(net)
    compiled(X)
    handle = nn.modules.module.register_module_forward_hook(lambda module, args, output: output * 2)
    try:
        return torch.equal(compiled(X), net(X))
    finally:
        handle.remove()


def default_changed() -> bool:
    def scaled(x: Tensor, n: int = 2) -> Tensor:
        return x * n

    compiled = thunder.jit(lambda x: scaled(x))
    compiled(X)
    scaled.__defaults__ = (3,)
    return torch.equal(compiled(X), X * 3)


def parameter_hidden() -> bool:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.scale

    net = Scaled()
    compiled = thunder.jit(net)
    compiled(X)
    Scaled.scale = 3  # type: ignore[assignment]
    return torch.equal(compiled(X), X * 3)


def attribute_overridden() -> bool:
    class Owner:
        def __init__(self) -> None:
            self.size = 2

    owner = Owner()
    compiled = thunder.jit(lambda x: x * owner.size)
    compiled(X)
    Owner.size = property(lambda self: 3)  # type: ignore[assignment]
    return torch.equal(compiled(X), X * 3)


def code_exchanged() -> bool:
    def scaled(x: Tensor) -> Tensor:
        return x * 2

    compiled = thunder.jit(lambda x: scaled(x))
    compiled(X)
    scaled.__code__ = (lambda x: x * 3).__code__
    return torch.equal(compiled(X), X * 3)


def call_replaced() -> bool:
    class Scaled(nn.Linear):
        """A class of modules whose calls are replaced later."""

    net = Scaled(3, 3)
    compiled = thunder.jit(net)
    compiled(X)
    Scaled._call_impl = lambda self, x: nn.Linear.forward(self, x) * 2  # type: ignore[method-assign]
    return torch.equal(compiled(X), net(X))


def accumulation_hook_added() -> bool:
    weight, calls = torch.ones(3, requires_grad=True), []

    def program(x: Tensor) -> None:
        (weight * x).sum().backward()

    compiled = thunder.jit(program)
    compiled(X)
    weight.grad = None
    node = weight.expand_as(weight).grad_fn.next_functions[0][0]  # type: ignore[union-attr]
    node.register_hook(lambda *_: calls.append(1))  # type: ignore[union-attr]
    compiled(X)
    return calls == [1]


def storage_shared() -> bool:
    compiled = thunder.jit(lambda x, a, b: x if a.untyped_storage() is b.untyped_storage() else -x)
    rows = torch.ones(2, 3)
    apart = torch.equal(compiled(X, rows[0], torch.ones(3)), -X)
    return apart and torch.equal(compiled(X, rows[0], rows[1]), X)


@dataclasses.dataclass(frozen=True)
class Key:
    """A key of a cache that a program makes itself, so that no prologue can read the value from the cache."""

    number: int


def cache_cleared() -> bool:
    factor = 2

    @functools.lru_cache
    def cached(_key: Key) -> int:
        return factor

    compiled = thunder.jit(lambda x: x * cached(Key(1)))
    cached(Key(1))
    same = torch.equal(compiled(X), X * 2)
    factor = 3
    same = same and torch.equal(compiled(X), X * 2)
    cached.cache_clear()
    return same and torch.equal(compiled(X), X * 3)


class Namespace(dict[str, Any]):
    """A user-defined dict of globals that computes one of them; Python only reads its items."""

    level = 4.0

    def __contains__(self, name: object) -> bool:
        raise AssertionError("asked")

    def __getitem__(self, name: str) -> Any:
        return Namespace.level if name == "LEVEL" else dict.__getitem__(self, name)


def named_in(namespace: dict[str, Any], source: str) -> Any:
    """Return a function with these globals."""
    namespace["__builtins__"] = builtins
    exec(f"def named(x): return {source}", namespace)
    return dict.__getitem__(namespace, "named")


def item_changed() -> bool:
    items = list(range(40))
    compiled = thunder.jit(lambda x: x + sum(items))
    before = torch.equal(compiled(X), X + sum(items))
    items[3] = 100
    return before and torch.equal(compiled(X), X + sum(items))


def builtin_hidden() -> bool:
    namespace = Namespace()
    named = named_in(namespace, "x * len(x)")
    compiled = thunder.jit(named)
    before = torch.equal(compiled(X), named(X))
    namespace["len"] = lambda x: 5
    return before and torch.equal(compiled(X), named(X))


@pytest.mark.parametrize("stored", [{}, {"LEVEL": 1.0}])
def test_globals_in_a_user_defined_dict_are_guarded(stored: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    named = named_in(Namespace(stored, OTHER=3.0), "x * LEVEL + OTHER")
    compiled = thunder.jit(named)
    assert torch.equal(compiled(X), X * 4 + 3)
    for level in (5.0, 6.0):
        monkeypatch.setattr(Namespace, "level", level)
        assert torch.equal(compiled(X), X * level + 3)
    dict.__setitem__(named.__globals__, "OTHER", 1.0)
    assert torch.equal(compiled(X), X * 6 + 1)


def kinds_of(kind: type[Guard]) -> list[type[Guard]]:
    """Return the kinds of guards that programs use: the guard classes that define a condition."""
    below = [one for subclass in kind.__subclasses__() for one in kinds_of(subclass)]
    return [kind, *below] if "condition" in vars(kind) and kind is not Guard else below


KINDS = kinds_of(Guard)
SCENES: dict[type[Guard], Callable[[], bool]] = {
    NotStored: builtin_hidden,
    Misses: cache_cleared,
    Unbound: variable_bound,
    SameAs: aliases_parted,
    DifferentFrom: others_made_one,
    AllDifferent: equals_made_one,
    CanDelete: attribute_deleted_twice,
    HasFact: offset_changed,
    NoHooks: hook_added,
    NoOtherHooks: hook_added_to_the_librarys,
    Truth: global_hook_added,
    Values: default_changed,
    ConstantItems: item_changed,
    DefinesNone: parameter_hidden,
    OverridesNone: attribute_overridden,
    HasCode: code_exchanged,
    KeepsCall: call_replaced,
    NoAccumulationHooks: accumulation_hook_added,
    SharesStorage: storage_shared,
}


def test_only_the_queried_member_of_a_set_is_guarded():
    items = {1, Slotted}
    compiled = thunder.jit(lambda x: x * 2 if 1 in items and Slotted in items and Config not in items else x)
    assert torch.equal(compiled(X), X * 2)
    items.add(5)
    items.add(int)
    assert torch.equal(compiled(X), X * 2)
    assert thunder.cache_misses(compiled) == 1
    items.remove(Slotted)
    assert torch.equal(compiled(X), X)
    assert thunder.cache_misses(compiled) == 2


def test_set_that_the_program_changes_has_the_new_members():
    def program(x, items):
        items.add(3)
        return x if 3 in items and 4 not in items else -x

    compiled = thunder.jit(program)
    for items in ({1}, {3}, {4}, {1}):
        assert torch.equal(compiled(X, set(items)), program(X, set(items)))


class Answering:
    """A class that computes the missing attributes of its instances."""

    def __getattr__(self, name: str) -> int:
        return len(name)


class Derived(Answering):
    """A class whose base class computes missing attributes."""


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (Answering, lambda owner, kind: setattr(owner, "width", 7)),
        (Derived, lambda owner, kind: owner.__dict__.update(width=8)),
        (Derived, lambda owner, kind: setattr(kind, "width", 9)),
        (Derived, lambda owner, kind: setattr(kind.__mro__[1], "width", 10)),
    ],
)
def test_attribute_that_comes_before_getattr_is_noticed(kind: Any, change: Any) -> None:
    made = type(kind.__name__, kind.__mro__[:-1], {})
    owner = made()
    compiled = thunder.jit(lambda x: x * owner.width)
    assert torch.equal(compiled(X), X * 5)
    change(owner, made)
    try:
        assert torch.equal(compiled(X), X * owner.width)
        assert owner.width != 5
    finally:
        for base in made.__mro__:
            if "width" in vars(base):
                del base.width


@pytest.mark.parametrize(
    ("first", "second"), [(0.0, -0.0), (-0.0, 0.0), (1 + 0j, 1), (0j, 0.0), (complex(0.0, 1.0), complex(-0.0, 1.0))]
)
def test_equal_default_of_another_type_or_sign_is_noticed(first, second):
    def scaled(x, by=first):
        return x / by if by == 0 else x * by

    compiled = thunder.jit(lambda x: scaled(x))
    for value in (first, second, first):
        scaled.__defaults__ = (value,)
        found, expected = compiled(torch.ones(2)), scaled(torch.ones(2))
        assert found.dtype == expected.dtype
        assert str(found) == str(expected)


@dataclasses.dataclass(frozen=True)
class Imports(Transform):
    """Imports a module when it first runs, as parts of PyTorch do."""

    def __call__(self, trace: Trace) -> Trace:
        sys.modules.setdefault("imported_while_compiling", types.ModuleType("imported_while_compiling"))
        return trace


def test_a_program_that_asks_for_a_module_compiles_although_the_compilation_imports_it() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x * ("imported_while_compiling" in sys.modules)

    compiled, x = thunder.jit(program, transforms=[Imports()]), torch.ones(2)
    try:
        assert torch.equal(compiled(x), program(x))
        assert torch.equal(compiled(x), program(x))
        assert thunder.cache_hits(compiled) == 1
    finally:
        sys.modules.pop("imported_while_compiling", None)
    assert torch.equal(compiled(x), program(x))


@pytest.mark.parametrize(("first", "second"), [(int | str, str | int), (Literal[1, 2], Literal[2, 1])])
def test_the_order_of_a_union_is_noticed(first: Any, second: Any) -> None:
    held = [first]
    compiled = thunder.jit(lambda x: (x, repr(held[0])))
    for kind in (first, second):
        held[0] = kind
        assert compiled(torch.ones(1))[1] == repr(kind)


OBJECT = object()


@pytest.mark.parametrize(
    ("first", "second"),
    [({0.0: 1, OBJECT: 2}, {-0.0: 1, OBJECT: 2}), ({1: 1, 2.0: 1, OBJECT: 2}, {1.0: 1, 2: 1, OBJECT: 2})],
    ids=["signs of zero", "types of equal numbers"],
)
def test_numbers_beside_an_object_as_keys(first: dict[object, int], second: dict[object, int]) -> None:
    """Keys are compared with their types and signs, also if another key is an object."""

    def program(mapping: dict[object, int], x: torch.Tensor) -> torch.Tensor:
        key: Any = next(iter(list(mapping.keys())))
        return x * math.copysign(2.0, key) if key == 0 else x * (2 if isinstance(key, int) else 3)

    compiled = thunder.jit(program)
    for mapping in (first, second, first, second):
        assert torch.equal(compiled(mapping, torch.ones(2)), program(mapping, torch.ones(2)))
    assert thunder.cache_misses(compiled) == 2
