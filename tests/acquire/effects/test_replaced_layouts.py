"""Programs that replace the class, the bases or the `__dict__` of an object, or delete names: results are eager's."""

from __future__ import annotations

import builtins
import types
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import thunder_core as thunder
from thunder_core.foundation.errors import RecompileWarning

X = torch.ones(2)
THIS = __import__("sys").modules[__name__]


@pytest.fixture(autouse=True)
def eager_kernels(without_kernels: None) -> None:
    """Run programs in eager operations; effects do not depend on the executor."""


class Objects:
    """Two classes without a common base, a class and its object, two further objects, and a dict."""

    def __init__(self) -> None:
        class First:
            k = 1

        class Second:
            k = 5

            def method(self) -> int:
                return 7

        class Derived(First):
            pass

        class Shared:
            def __init__(self, table: dict[str, Any]) -> None:
                self.__dict__ = table

        self.First, self.Second, self.Derived, self.Shared = First, Second, Derived, Shared
        self.one, self.plain, self.other = Derived(), First(), First()
        self.plain.j, self.other.j = 2, 3  # type: ignore[attr-defined]
        self.table: dict[str, Any] = {"j": 30}

    def state(self) -> Any:
        names = [kind.__name__ for kind in (*self.Derived.__mro__, type(self.plain), type(self.one))]
        return names, vars(self.plain), vars(self.other), self.table, self.Second.k


def set_bases(objects: Any, x: torch.Tensor) -> Any:
    objects.Derived.__bases__ = (objects.Second,)
    return x * objects.Derived.k, isinstance(objects.one, objects.Second), objects.one.method()


def set_bases_and_restore(objects: Any, x: torch.Tensor) -> Any:
    bases = objects.Derived.__bases__
    objects.Derived.__bases__ = (objects.Second,)
    result = x * objects.Derived.k
    objects.Derived.__bases__ = bases
    return result * objects.Derived.k


def set_bases_of_new_class(objects: Any, x: torch.Tensor) -> Any:
    class New(objects.First):  # type: ignore[misc]
        pass

    New.__bases__ = (objects.Second,)
    return x * New.k


def set_class(objects: Any, x: torch.Tensor) -> Any:
    before = objects.plain.k
    objects.plain.__class__ = objects.Second
    return x * objects.plain.k * before + objects.plain.method()


def set_dict(objects: Any, x: torch.Tensor) -> Any:
    objects.plain.__dict__ = {"j": 4, "z": 1}
    return x * objects.plain.j, vars(objects.plain)


def set_dict_from_outside(objects: Any, x: torch.Tensor) -> Any:
    objects.plain.__dict__ = objects.table
    objects.plain.n = 3
    return x * objects.plain.j


def swap_dicts(objects: Any, x: torch.Tensor) -> Any:
    objects.plain.__dict__, objects.other.__dict__ = objects.other.__dict__, objects.plain.__dict__
    objects.plain.j += 1
    return x * objects.plain.j


def delete_dict(objects: Any, x: torch.Tensor) -> Any:
    del objects.plain.__dict__
    return x * objects.plain.k, hasattr(objects.plain, "j")


def share_dict(objects: Any, x: torch.Tensor) -> Any:
    shared = objects.Shared(objects.table)
    shared.j += 1
    return x * objects.Shared(objects.table).j


PROGRAMS = (
    set_bases, set_bases_and_restore, set_bases_of_new_class, set_class, set_dict, set_dict_from_outside, swap_dicts,
    delete_dict, share_dict,
)  # fmt: skip


def outcomes(function: Callable[..., Any], program: Callable[..., Any]) -> str:
    """Call a program with two sets of objects, the second time after a change of the objects; return what it did."""
    compiled, results = function(program), []
    for _ in range(2):
        objects = Objects()
        for _ in range(2):
            results.append((compiled(objects, X), objects.state()))
            objects.Derived.__bases__ = (objects.First,)  # type: ignore[assignment]
            objects.Second.k, objects.table["j"] = 9, 50
            objects.plain.__class__ = objects.First  # type: ignore[assignment]
            objects.plain.__dict__ = {"j": 6}
    return repr(results)


@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_reads_after_replacement(program: Callable[..., Any], cache: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecompileWarning)
        ours = outcomes(lambda function: thunder.jit(function, cache=cache), program)  # type: ignore[arg-type]
    assert ours == outcomes(lambda function: function, program)


def test_replaced_dict_that_is_not_read_is_traced() -> None:
    objects = Objects()

    def program(x: torch.Tensor) -> torch.Tensor:
        objects.plain.__dict__ = {"j": x.shape[0]}
        return x

    compiled = thunder.jit(program, data_dependent="error")
    compiled(X)
    objects.plain.__dict__ = {}
    compiled(X)
    assert vars(objects.plain) == {"j": 2}
    assert thunder.cache_misses(compiled) == 1


def test_function_that_the_program_changes() -> None:
    def scale(a: int, b: int = 2, *, c: int = 3) -> int:
        return a + b + c

    def other(a: int, b: int = 20, *, c: int = 30) -> int:
        return a * b * c

    def program(x: torch.Tensor) -> torch.Tensor:
        scale.__defaults__ = (5,)
        result = x * scale(1)
        scale.__kwdefaults__ = {"c": 10}
        result *= scale(1)
        scale.__code__ = other.__code__
        return result * scale(2)

    compiled, code = thunder.jit(program, data_dependent="error"), scale.__code__
    for _ in range(2):
        scale.__code__, scale.__defaults__, scale.__kwdefaults__ = code, (2,), {"c": 3}
        expected = program(X)
        scale.__code__, scale.__defaults__, scale.__kwdefaults__ = code, (2,), {"c": 3}
        assert torch.equal(compiled(X), expected)
        assert scale(1) == 50
    assert thunder.cache_misses(compiled) == 1


def delete_global(x: torch.Tensor) -> torch.Tensor:
    global len
    del len
    return x * len([1, 2])  # noqa: F821 - the builtin


def pop_global(x: torch.Tensor) -> torch.Tensor:
    globals().pop("len")
    return x * len([1, 2])


def set_builtin(x: torch.Tensor) -> Any:
    builtins.new = 3  # type: ignore[attr-defined]
    result = x * new  # type: ignore[name-defined]  # noqa: F821
    del builtins.new  # type: ignore[attr-defined]
    try:
        return new  # type: ignore[name-defined]
    except NameError:
        return result


def replace_builtin(x: torch.Tensor) -> torch.Tensor:
    original = builtins.abs
    builtins.abs = lambda value: 50  # type: ignore[assignment]
    result = x * abs(-3)
    builtins.abs = original
    return result * abs(-3)


@pytest.mark.parametrize("program", [delete_global, pop_global, set_builtin, replace_builtin])
def test_names_of_builtins(program: types.FunctionType) -> None:
    compiled = thunder.jit(program, data_dependent="error")
    for value in (100, 300):
        vars(THIS)["len"] = lambda items, value=value: value
        expected = program(X)
        vars(THIS)["len"] = lambda items, value=value: value
        assert torch.equal(compiled(X), expected)
        was_deleted = vars(THIS).pop("len", None) is None
        assert was_deleted == (program in (delete_global, pop_global))
    assert not hasattr(builtins, "new")
    assert abs(-2) == 2


def test_slot_of_an_object_with_a_dict() -> None:
    class Slotted:
        __slots__ = ("a", "z")

    class Derived(Slotted):
        def __init__(self) -> None:
            self.a, self.c = 1, 2

    def outcomes(function: Callable[..., Any]) -> Any:
        owner = Derived()

        def program(x: torch.Tensor) -> Any:
            owner.a += 1
            owner.c += owner.a
            owner.z = owner.c
            if owner.a > 3:
                del owner.z
            return x * owner.a, hasattr(owner, "z")

        compiled = function(program)
        return repr([(compiled(X), owner.a, dict(vars(owner))) for _ in range(5)])

    assert outcomes(lambda program: thunder.jit(program, data_dependent="error")) == outcomes(lambda program: program)
