"""Reads that Python makes for a statement, a builtin or a module that runs natively: later changes are noticed."""

from __future__ import annotations

import abc
import copy
import enum
import inspect
import json
import sys
import traceback
import types
import typing
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import thunder_core as thunder
from thunder_core.foundation.errors import RecompileWarning
from thunder_core.frontend.acquire.outside.function_reads import names_in_annotation

X = torch.ones(2)


def assert_same_after(program: Callable[[torch.Tensor], Any], *changes: Callable[[], object]) -> None:
    """Check a compiled program against eager PyTorch, before and after each change."""
    compiled = thunder.jit(program)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecompileWarning)
        for change in (lambda: None, *changes):
            change()
            assert repr(compiled(X)) == repr(program(X))


def test_match_args() -> None:
    class Pair:
        __match_args__: tuple[str, ...] = ("a", "b")
        a, b = 1, 2

    pair = Pair()

    def program(x: torch.Tensor) -> torch.Tensor:
        match pair:
            case Pair(first, second):
                return x * first + second
        return x

    assert_same_after(program, lambda: setattr(Pair, "__match_args__", ("b", "a")))


def test_parameters_of_functions() -> None:
    def scale(factor: int = 2, *, bias: float = 1.0) -> None:
        """Scale."""

    def program(x: torch.Tensor) -> Any:
        parameters = inspect.signature(scale).parameters
        names = inspect.getfullargspec(scale).args
        return x * parameters["factor"].default, names, inspect.getdoc(scale), str(typing.get_type_hints(scale))

    def other(base: int, factor: int = 2) -> None: ...

    assert_same_after(
        program,
        lambda: setattr(scale, "__defaults__", (5,)),
        lambda: setattr(scale, "__kwdefaults__", {"bias": 2.0}),
        lambda: scale.__annotations__.update(factor=float),
        lambda: setattr(scale, "__doc__", "Multiply."),
        lambda: setattr(scale, "__code__", other.__code__),
    )


def test_parameters_and_annotations_of_classes() -> None:
    class Layer:
        width: int

        def __init__(self, width: int = 2) -> None: ...

    def program(x: torch.Tensor) -> Any:
        width = inspect.signature(Layer).parameters["width"].default
        return x * width, str(typing.get_type_hints(Layer))

    assert_same_after(
        program,
        lambda: setattr(Layer.__init__, "__defaults__", (5,)),
        lambda: Layer.__annotations__.update(depth=int),
    )


def test_subclasses_of_abstract_class() -> None:
    class Base(abc.ABC):  # noqa: B024
        factor = 1

    kept: list[type] = [type("First", (Base,), {"factor": 2})]

    def program(x: torch.Tensor) -> Any:
        return x * sum(kind.factor for kind in Base.__subclasses__())

    assert_same_after(program, lambda: kept.append(type("Second", (Base,), {"factor": 5})))


def test_members_of_enumeration() -> None:
    class Level(enum.Enum):
        LOW = 1
        HIGH = 2

        @classmethod
        def _missing_(cls, value: object) -> Level:
            return default

        def __init__(self, number: int) -> None:
            self.weight = number

    default = Level.LOW

    def change_default() -> None:
        nonlocal default
        default = Level.HIGH

    def program(x: torch.Tensor) -> Any:
        return x * sum(level.weight for level in Level), Level(7)

    assert_same_after(program, change_default, lambda: setattr(Level.HIGH, "weight", 5))


def test_reduction_in_python() -> None:
    class Box:
        def __init__(self, value: int) -> None:
            self.value = value

        def __reduce__(self) -> Any:
            return Box, (self.value + extra,)

    box, extra = Box(1), 1

    def change_extra() -> None:
        nonlocal extra
        extra = 4

    assert_same_after(lambda x: x * copy.copy(box).value, change_extra)


def test_value_that_a_callback_returns_to_c_code() -> None:
    box = types.SimpleNamespace(value=1)
    assert_same_after(
        lambda x: (x, json.dumps([box], default=lambda value: vars(value))), lambda: setattr(box, "value", 5)
    )


def test_getter_that_raises_is_called_as_often_as_in_eager() -> None:
    class Lazy:
        calls = 0

        @property
        def value(self) -> int:
            Lazy.calls += 1
            raise AttributeError("value")

    lazy = Lazy()
    compiled = thunder.jit(lambda x: x * (2 if hasattr(lazy, "value") else 3))
    for _ in range(3):
        compiled(X)
    assert Lazy.calls == 3


def state_of_caller(x: torch.Tensor) -> Any:
    return x + 1, repr(sys.exc_info()[1]), traceback.format_exc()


def context_of_caller(x: torch.Tensor) -> Any:
    try:
        raise ValueError("inner")
    except ValueError as error:
        return x + 1, repr(error.__context__)


def raise_again(x: torch.Tensor) -> Any:
    try:
        raise  # noqa: PLE0704
    except Exception as error:
        return x + 1, str(error)


def call_in_handlers(function: Callable[[torch.Tensor], Any]) -> list[Any]:
    """Call a function outside of handlers, and in the handlers of two errors, and then outside again."""
    results = [function(X)]
    for key in ("first", "second"):
        try:
            raise KeyError(key)
        except KeyError:
            results.append(function(X)[1])
    return [*results, function(X)]


@pytest.mark.filterwarnings("ignore::thunder_core.foundation.errors.RecompileWarning")
@pytest.mark.parametrize("program", [state_of_caller, context_of_caller, raise_again], ids=lambda f: f.__name__)
def test_exception_that_the_caller_handles(program: Callable[[torch.Tensor], Any]) -> None:
    assert repr(call_in_handlers(thunder.jit(program))) == repr(call_in_handlers(program))


@pytest.mark.filterwarnings("ignore::thunder_core.foundation.errors.RecompileWarning")
def test_changed_warning_filters() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        warnings.filterwarnings("ignore", message="some message")
        return x + 1

    compiled = thunder.jit(program)
    for _ in range(3):
        with warnings.catch_warnings():
            warnings.resetwarnings()
            warnings.simplefilter("ignore", RecompileWarning)
            compiled(X)
            assert len(warnings.filters) == 2


Alias = int


def annotated(value: "Alias", *, items: "list[Alias]") -> None:  # noqa: UP037 - a string on purpose
    """Name a global in the annotations."""


class Annotated:
    value: "typing.Optional[Alias]"  # noqa: UP037, UP045
    items: typing.List["Alias"]  # noqa: UP006, UP037


def test_names_in_annotations() -> None:
    def program(x: torch.Tensor) -> Any:
        evaluated = inspect.signature(annotated, eval_str=True).parameters["value"].annotation
        return x, typing.get_type_hints(annotated), typing.get_type_hints(Annotated), evaluated

    try:
        assert_same_after(program, lambda: globals().update(Alias=str), lambda: globals().update(Alias=float))
    finally:
        globals().update(Alias=int)


def test_refused_list_with_own_length() -> None:
    class Counting(list[int]):
        calls = 0

        def __len__(self) -> int:
            Counting.calls += 1
            return 3

    counting = Counting([1, 2])
    compiled = thunder.jit(lambda x: x * len(counting))
    for call in range(3):
        compiled(X)
        assert Counting.calls == call + 1
        counting.append(4)


def test_refused_enumeration_with_own_text() -> None:
    """The reason of a failed guard calls no `__repr__` of the user."""
    calls = []

    class Level(enum.IntEnum):
        LOW = 1
        HIGH = 2

        def __repr__(self) -> str:
            calls.append(self.name)
            return "level"

    compiled = thunder.jit(lambda x, level: x * level)
    assert [compiled(X, level).tolist() for level in Level] == [(X * level.value).tolist() for level in Level]
    assert calls == []


def test_annotation_with_code_of_the_user() -> None:
    class Annotation:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(name)

    assert [*names_in_annotation({"x": Annotation(), "y": "module.Name | list['Other']", "z": "x\0"})] == [
        "module",
        "list",
        "Other",
    ]
