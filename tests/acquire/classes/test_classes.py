"""Reads that depend on an object's class, and values that are new at each read, are guarded: a change is noticed."""

from __future__ import annotations

import collections
import functools
import sys
import types
import typing
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest
import torch

import thunder_core as thunder

X = torch.ones(2)


class Fresh:
    """A descriptor without `__set__` that returns a new function at each read."""

    factor = 2

    def __get__(self, owner: Any, kind: Any = None) -> Callable[[Any], Any]:
        factor, scale = self.factor, (kind if owner is None else owner).scale
        return lambda x: x * factor * scale


class Base:
    scale = 3

    def __add__(self, other: Any) -> Any:
        return other * 2

    def __len__(self) -> int:
        return 2

    def __getitem__(self, key: Any) -> int:
        if key > 1:
            raise IndexError(key)
        return 2

    def __bool__(self) -> bool:
        return True

    def __str__(self) -> str:
        return "two"

    def __getattr__(self, name: str) -> int:
        if name == "lacking":
            return 2
        raise AttributeError(name)

    def __enter__(self) -> int:
        return 2

    def __exit__(self, *error: object) -> None:
        pass

    @property
    def doubled(self) -> int:
        return 2 * self.scale

    @classmethod
    def of_class(cls, x: Any) -> Any:
        return x * cls.scale

    @staticmethod
    def of_none(x: Any) -> Any:
        return x * 2

    def scaled(self, x: Any, factor: int = 1) -> Any:
        return x * factor * self.scale

    @classmethod  # type: ignore[misc]
    @property
    def of_all(cls) -> int:
        return cls.scale

    Listed: Any = list[int]
    Mapped: Any = typing.List[int]  # noqa: UP006
    Either: Any = int | str

    fresh = Fresh()
    partial = functools.partialmethod(scaled, factor=4)


class Derived(Base):
    pass


class Plain:
    """An object with Python's default behaviour."""

    scale = 3


class OfPlain(Plain):
    held = Plain()


class Counted(type):
    """A metaclass that provides attributes."""

    def __getattr__(cls, name: str) -> Callable[[Any], Any]:
        scale = cls.scale
        return lambda x: x * scale

    @property
    def doubled(cls) -> int:
        return 2 * cls.scale


class OfCounted(metaclass=Counted):
    scale = 3


class Own:
    """An object that looks up its attributes itself."""

    def __init__(self) -> None:
        self.scale = 3

    def __getattribute__(self, name: str) -> Any:
        value = object.__getattribute__(self, name)
        return (lambda x: x * value) if name == "scale" else value


class Shadowing(torch.nn.Module):
    """A module whose class has a method of the name of a submodule."""

    scale = 3

    def __init__(self) -> None:
        super().__init__()
        self._modules["linear"] = torch.nn.Linear(2, 2)

    @classmethod
    def linear(cls, x: Any) -> Any:
        return x * cls.scale

    def forward(self, x: Any) -> Any:
        return self.linear(x)


class Wrapping(torch.nn.Module):
    """A module that asks the module inside for attributes that it lacks."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Shadowing()
        self.shift = torch.nn.Parameter(torch.ones(2), requires_grad=False)

    def __getattr__(self, name: str) -> Any:
        try:
            found = super().__getattr__(name)
        except AttributeError:
            return getattr(self.inner, name)
        return found * 2 if isinstance(found, torch.Tensor) else found

    def forward(self, x: Any) -> Any:
        return x * self.scale + self.shift


module = types.ModuleType("a_module")
module.__dict__.update(scale=3, __getattr__=lambda name: functools.partial(torch.mul, module.scale))
outside, own, shadowing, wrapping = Derived(), Own(), Shadowing(), Wrapping()
reference = weakref.ref(own)


def entered(x: Any, manager: Any) -> Any:
    with manager as factor:
        return x * factor


# Uses of an object, the attribute of its class that is replaced, and its replacement.
USES: dict[str, tuple[Callable[[Any, Any], Any], str, Any]] = {
    "class attribute": (lambda x, one: x * one.scale, "scale", 5),
    "method": (lambda x, one: one.scaled(x), "scaled", lambda self, x: x * 9),
    "operator": (lambda x, one: one + x, "__add__", lambda self, other: other * 9),
    "length": (lambda x, one: x * len(one), "__len__", lambda self: 9),
    "item": (lambda x, one: x * one[0], "__getitem__", lambda self, key: 9),
    "items": (lambda x, one: x * [*one].pop(), "__getitem__", lambda self, key: {0: 9}[key] if not key else [][key]),
    "truth": (lambda x, one: x if one else -x, "__bool__", lambda self: False),
    "text": (lambda x, one: (x, f"{one}", "%s" % one), "__str__", lambda self: "nine"),  # noqa: UP031
    "lacking attribute": (lambda x, one: x * one.lacking, "__getattr__", lambda self, name: 9),
    "context": (entered, "__enter__", lambda self: 9),
    "property": (lambda x, one: x * one.doubled, "doubled", property(lambda self: 9)),
    "class method": (lambda x, one: one.of_class(x), "of_class", classmethod(lambda cls, x: x * 9)),
    "static method": (lambda x, one: one.of_none(x), "of_none", staticmethod(lambda x: x * 9)),
    "descriptor": (lambda x, one: one.fresh(x), "scale", 5),
    "partial method": (lambda x, one: one.partial(x), "scale", 5),
    "partial method replaced": (
        lambda x, one: one.partial(x),
        "partial",
        functools.partialmethod(Base.scaled, factor=7),
    ),
}
USES |= {
    "generic alias": (lambda x, one: x * len(typing.get_args(one.Listed)), "Listed", dict[int, str]),
    "typing's alias": (lambda x, one: (x, str(one.Mapped)), "Mapped", typing.Dict[int, str]),  # noqa: UP006
    "union": (lambda x, one: x * isinstance(2.0, one.Either), "Either", int | float),
}
if sys.version_info < (3, 13):
    USES["property of a class"] = (lambda x, one: x * one.of_all * type(one).of_all, "scale", 5)


def added(x: Any, one: Any) -> Any:
    one += 1
    return x * one


def set_and_read(x: Any, one: Any) -> Any:
    one.other = 1.0
    return x * one.other


def set_and_deleted(x: Any, one: Any) -> Any:
    one.other = 1.0
    del one.other
    vars(one).pop("other", None)
    return x * vars(one).pop("deleted", 2)


def made(x: Any, one: Any) -> Any:
    return x * vars(type(one)()).get("scale", 2)


def or_else(use: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """Return the result of a use of an object, or another result if its class lacks the method."""

    def used(x: Any, one: Any) -> Any:
        try:
            return x * use(one)
        except TypeError:
            return x * 77

    return used


def scaled_instead(kind: Any) -> Any:
    one = object.__new__(kind)
    vars(one).update(scale=7)
    return one


# Uses of an object whose class relies on Python's defaults, and the method that the class gets later.
SPECIAL: dict[str, tuple[Callable[[Any, Any], Any], Any]] = {
    "__add__": (or_else(lambda one: one + 1), lambda self, other: 9),
    "__radd__": (or_else(lambda one: 1 + one), lambda self, other: 9),
    "__iadd__": (or_else(lambda one: added(1, one)), lambda self, other: 9),
    "__setattr__": (set_and_read, lambda self, name, value: object.__setattr__(self, name, value * 9)),
    "__delattr__": (set_and_deleted, lambda self, name: vars(self).update(deleted=9)),
    "__format__": (lambda x, one: (x, f"{one}"[:4]), lambda self, text: "nine"),
    "__repr__": (lambda x, one: (x, repr(one)[:4]), lambda self: "nine"),
    "__str__": (lambda x, one: (x, str(one)[:4]), lambda self: "nine"),
    "__bool__": (lambda x, one: x if one else -x, lambda self: False),
    "__len__": (lambda x, one: x if one else -x, lambda self: 0),
    "__hash__": (lambda x, one: x * (hash(one) == 9), lambda self: 9),
    "__eq__": (lambda x, one: x if one == 1 else -x, lambda self, other: True),
    "__iter__": (or_else(lambda one: sum(one)), lambda self: iter([1, 2])),
    "__contains__": (or_else(lambda one: 1 in one), lambda self, key: True),
    "__getattr__": (lambda x, one: x * getattr(one, "lacking", 2), lambda self, name: 9),
    "__getattribute__": (lambda x, one: x * one.scale, lambda self, name: 9),
    "__new__": (made, scaled_instead),
    "__init__": (made, lambda self: vars(self).update(scale=9)),
    "__get__": (lambda x, one: x * (one.held == 9), lambda self, owner, kind: 9),
}
# Programs whose values are new at each read, the attribute that the values depend on, and its replacement.
READS: dict[str, tuple[Callable[[Any], Any], tuple[Any, str, Any]]] = {
    "descriptor": (lambda x: outside.fresh(x), (Fresh, "factor", 7)),
    "descriptor replaced": (lambda x: outside.fresh(x), (Fresh, "__get__", lambda *_: lambda x: x * 9)),
    "descriptor read from the class": (lambda x: Derived.fresh(x), (Base, "scale", 7)),
    "partial method read from the class": (lambda x: Derived.partial(outside, x), (Base, "scale", 7)),
    "partial method that is hidden": (lambda x: Derived.partial(outside, x), (Derived, "partial", lambda _, x: x)),
    "attribute of a metaclass": (lambda x: OfCounted.anything(x), (OfCounted, "scale", 7)),
    "attribute that comes before a metaclass": (lambda x: OfCounted.lacking(x), (OfCounted, "lacking", torch.neg)),
    "property of a metaclass": (lambda x: x * OfCounted.doubled, (OfCounted, "scale", 7)),
    "attribute of a module": (lambda x: module.anything(x), (module, "scale", 7)),
    "own lookup": (lambda x: own.scale(x), (own, "scale", 7)),
    "weak reference": (lambda x: reference().__dict__["scale"] * x, (own, "scale", 7)),
    "method that shadows a submodule": (lambda x: shadowing(x), (Shadowing, "scale", 7)),
    "attribute that comes before a wrapped module": (lambda x: wrapping(x), (wrapping, "scale", 7)),
    "attribute of a wrapper's class": (lambda x: wrapping(x), (Wrapping, "scale", 7)),
    "attribute of a wrapped module": (lambda x: wrapping(x), (wrapping.inner, "scale", 7)),
}


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute in this context, and restore the stored attribute afterwards."""
    had, before = name in vars(owner), vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if had:
            setattr(owner, name, before)
        else:
            delattr(owner, name)


def assert_noticed(program: Callable[[Any], Any], change: tuple[Any, str, Any]) -> None:
    """Assert that the program matches eager with one trace, and that it matches eager after a change."""
    compiled = thunder.jit(program)
    before = repr(program(X))
    assert [repr(compiled(X)) for _ in range(2)] == [before] * 2
    assert thunder.cache_misses(compiled) == 1
    with replaced(*change):
        assert repr(program(X)) == repr(compiled(X)) != before
    assert repr(compiled(X)) == before


@pytest.mark.parametrize("name", USES)
@pytest.mark.parametrize("holder", [Base, Derived])
def test_attributes_of_a_class_are_guarded(name: str, holder: type) -> None:
    """The attribute is replaced, or overridden in a derived class; the object is outside or made by the program."""
    use, attribute, value = USES[name]
    assert_noticed(lambda x: use(x, outside), (holder, attribute, value))
    assert_noticed(lambda x: use(x, Derived()), (holder, attribute, value))


@pytest.mark.parametrize("name", SPECIAL)
@pytest.mark.parametrize("holder", [Plain, OfPlain])
def test_special_methods_that_come_later_are_noticed(name: str, holder: type) -> None:
    """Python's default applies until then, for outside objects and for objects that the program makes."""
    use, value = SPECIAL[name]
    one = OfPlain()
    if (name, holder) != ("__get__", OfPlain):
        assert_noticed(lambda x: use(x, one), (holder, name, value))
        assert_noticed(lambda x: use(x, OfPlain()), (holder, name, value))


def test_unread_attribute_of_a_class_is_not_guarded() -> None:
    one, compiled = OfPlain(), thunder.jit(lambda x, one: x * one.scale)
    assert torch.equal(compiled(X, one), X * 3)
    with replaced(Plain, "another", 5):
        assert torch.equal(compiled(X, one), X * 3)
    assert thunder.cache_misses(compiled) == 1


@pytest.mark.parametrize("name", READS)
def test_value_that_is_new_at_each_read_is_guarded_by_its_origin(name: str) -> None:
    assert_noticed(*READS[name])


def test_tables_of_a_module_with_its_own_getattr_are_guarded() -> None:
    owner = Wrapping()
    compiled = thunder.jit(owner)
    assert torch.equal(compiled(X), X * 3 + 2)
    owner._parameters["shift"] = torch.nn.Parameter(torch.ones(2) * 3, requires_grad=False)
    assert torch.equal(compiled(X), X * 3 + 6)
    del owner._parameters["shift"]
    owner._buffers["shift"] = torch.ones(2) * 5
    assert torch.equal(compiled(X), X * 3 + 10)
    owner._buffers["scale"] = torch.ones(2) * 2
    assert torch.equal(compiled(X), X * 4 + 10)


def test_closures_of_special_methods_are_guarded() -> None:
    factor = 2

    class Closed:
        held: ClassVar[list[int]] = [1]

        def __add__(self, other: Any) -> Any:
            return other * factor

        @property
        def factor(self) -> int:
            return factor

    one = Closed()
    compiled = thunder.jit(lambda x: (one + x, x * one.factor))
    for factor in (2, 2, 3, 2):
        assert repr(compiled(X)) == repr((X * factor, X * factor))


def test_classes_that_the_program_makes_leave_no_guard() -> None:
    """These classes leave no guard, and no trace holds them."""

    @thunder.jit
    def compiled(x: Any) -> Any:
        class Inner:
            scale = 2

            def __add__(self, other: Any) -> Any:
                return other * self.scale

        return Inner() + x

    assert [compiled(X).tolist() for _ in range(2)] == [[2.0, 2.0]] * 2
    assert thunder.cache_misses(compiled) == 1
    assert "Inner" not in str(thunder.last_prologue_traces(compiled)[-1])


class Ancestor:
    """A user's class that other classes derive from."""

    level = 2.0

    def scale(self) -> float:
        return self.level


class Listed(collections.UserList, Ancestor):
    """A class whose first base is not the user's."""


def of_a_class_made_inside(x: torch.Tensor) -> torch.Tensor:
    class Local(Ancestor):
        pass

    made = Local()
    return x * made.level + made.scale()


def of_a_class_behind_a_librarys(x: torch.Tensor) -> torch.Tensor:
    return x * Listed().level


@pytest.mark.parametrize("program", [of_a_class_made_inside, of_a_class_behind_a_librarys])
@pytest.mark.parametrize(("name", "value"), [("level", 5.0), ("scale", lambda self: 7.0)])
def test_bases_after_library_classes_are_guarded(program, name, value, monkeypatch):
    compiled, x = thunder.jit(program), torch.ones(1)
    assert torch.equal(compiled(x), program(x))
    monkeypatch.setattr(Ancestor, name, value)
    assert torch.equal(compiled(x), program(x))


def test_class_entry_that_a_method_reads_by_object_getattribute_is_guarded() -> None:
    class Base:
        scale = 2.0

    class Derived(Base):
        def __getattribute__(self, name: str) -> Any:
            return super().__getattribute__(name)

    class Plain(Base):
        def read(self) -> Any:
            return self.__getattribute__("scale") * object.__getattribute__(self, "scale")

    derived, plain = Derived(), Plain()
    compiled = thunder.jit(lambda x: x * derived.scale * plain.read())
    changes: list[Any] = [lambda: None, lambda: setattr(Base, "scale", 3.0), lambda: setattr(derived, "scale", 5.0)]
    for change in (*changes, lambda: setattr(plain, "scale", 7.0), lambda: delattr(derived, "scale")):
        change()
        assert torch.equal(compiled(torch.ones(2)), torch.ones(2) * derived.scale * plain.read())
    misses = thunder.cache_misses(compiled)
    compiled(torch.ones(2))
    assert thunder.cache_misses(compiled) == misses
