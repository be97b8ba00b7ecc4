"""Deletions of attributes and variables: a call without the attribute raises where eager PyTorch raises."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import thunder_core as thunder


class Plain:
    def __init__(self):
        self.a = 1


class Slotted:
    __slots__ = ("a",)

    def __init__(self):
        self.a = 1


def linear() -> torch.nn.Linear:
    module = torch.nn.Linear(1, 1)
    module.a = 1
    return module


def delete_attribute(owner: Any) -> None:
    del owner.a


def delete_variable(owner: Any) -> None:
    del owner.__dict__["a"]


def set_and_delete(owner: Any) -> None:
    owner.a = 2
    del owner.a


def new_and_deleted(owner: Any) -> None:
    owner.b = 2
    del owner.b


def deleted_and_set(owner: Any) -> None:
    del owner.a
    owner.a = 3


def set_by_namespace(owner: Any) -> None:
    owner.__dict__["a"] = 2
    del owner.a


CASES: dict[str, tuple[Callable[[Any], None], Callable[[], Any]]] = {
    "an object": (delete_attribute, Plain),
    "a slot": (delete_attribute, Slotted),
    "a namespace": (delete_attribute, lambda: types.SimpleNamespace(a=1)),
    "a module": (delete_attribute, linear),
    "a parameter": (lambda owner: delattr(owner, "bias"), linear),
    "a class": (delete_attribute, lambda: type("Made", (), {"a": 1})),
    "a variable": (delete_variable, Plain),
    "a written attribute": (set_and_delete, Plain),
    "a written slot": (set_and_delete, Slotted),
    "a written attribute of a module": (set_and_delete, linear),
    "a new attribute": (new_and_deleted, Plain),
    "a new attribute of a class": (new_and_deleted, lambda: type("Made", (), {})),
    "an attribute that is set again": (deleted_and_set, Plain),
    "a variable that becomes an attribute": (set_by_namespace, Plain),
}


@pytest.mark.parametrize("case", CASES)
def test_a_second_deletion_raises_before_the_writes(case):
    delete, make = CASES[case]

    def program(owner, total):
        delete(owner)
        total.add_(1)

    outcomes = []
    for run in (program, thunder.jit(program)):
        owner, total = make(), torch.zeros(2)
        raised = []
        for _ in range(3):
            try:
                run(owner, total)
            except (AttributeError, KeyError) as error:
                raised.append(str(error))
        outcomes.append((raised, total.tolist(), hasattr(owner, "a")))
    assert outcomes[0] == outcomes[1]


def test_a_new_attribute_that_is_deleted_is_deleted_in_later_calls():
    compiled = thunder.jit(lambda owner, x: (new_and_deleted(owner), x + 1)[1])
    for owner in (Plain(), Plain()):
        compiled(owner, torch.ones(1))
        owner.b = 5
        compiled(owner, torch.ones(1))
        assert not hasattr(owner, "b")


def test_a_second_deletion_of_a_global_raises_before_the_writes(monkeypatch):
    monkeypatch.setitem(globals(), "NUMBER", 1)

    def program(total):
        global NUMBER
        del NUMBER
        total.add_(1)

    compiled, total = thunder.jit(program), torch.zeros(2)
    compiled(total)
    with pytest.raises(NameError, match="NUMBER"):
        compiled(total)
    assert total.tolist() == [1, 1]
    monkeypatch.setitem(globals(), "NUMBER", 2)
    compiled(total)
    assert total.tolist() == [2, 2]


def test_a_variable_with_the_name_of_the_check():
    can_delete = Plain()

    def program(can_delete, x):
        del can_delete.a
        return x + 1

    compiled = thunder.jit(program)
    for _ in range(2):
        can_delete.a = 1
        assert compiled(can_delete, torch.ones(1)).tolist() == [2]
    assert thunder.cache_misses(compiled) == 1


class Inheriting(Plain):
    """A class that also has the attribute, which an instance may have itself."""

    a = 5


def deleted_if_possible(owner: Any, x: torch.Tensor) -> torch.Tensor:
    factor = owner.a if hasattr(owner, "a") else 3
    try:
        del owner.a
    except AttributeError:
        factor += 10
    return x * factor


@pytest.mark.parametrize("make", [Inheriting, Plain, Slotted, lambda: type("Derived", (Inheriting,), {"a": 1})])
def test_deletion_that_raises_is_guarded_by_what_the_object_has_itself(make: Callable[[], Any]) -> None:
    ours, eagers = make(), make()
    compiled = thunder.jit(lambda x: deleted_if_possible(ours, x))
    for step in range(6):
        if step == 4:
            ours.a = eagers.a = 7
        assert torch.equal(compiled(torch.ones(2)), deleted_if_possible(eagers, torch.ones(2)))
        assert hasattr(ours, "a") == hasattr(eagers, "a")


VARIABLE = 1


def deletes_variable_twice(x: torch.Tensor) -> torch.Tensor:
    global VARIABLE
    VARIABLE = 5
    del VARIABLE
    try:
        del VARIABLE
    except NameError:
        x = x + 1
    VARIABLE = 1  # noqa: F841
    return x


def test_second_deletion_of_a_variable_raises_as_in_eager() -> None:
    compiled = thunder.jit(deletes_variable_twice)
    for _ in range(2):
        assert compiled(torch.zeros(())) == 1
        assert VARIABLE == 1
    assert thunder.cache_misses(compiled) == 1


def test_method_call_without_its_arguments_raises_as_in_eager() -> None:
    def program(x: torch.Tensor, items: list[int]) -> torch.Tensor:
        try:
            items.__setitem__()  # type: ignore[call-arg]
        except TypeError:
            x = x + 1
        return x

    compiled = thunder.jit(program)
    assert compiled(torch.zeros(()), [1]) == 1
    assert thunder.cache_misses(compiled) == 1


class Answering:
    """Has a slot, which is empty at first; `__getattr__` answers for it."""

    __slots__ = ("a",)

    def __getattr__(self, name: str) -> int:
        return 5


def test_an_empty_slot_is_no_attribute_although_getattr_answers() -> None:
    owner = Answering()

    def program(x: torch.Tensor) -> torch.Tensor:
        try:
            del owner.a
        except AttributeError:
            return x * 3
        return x * 2

    compiled, x = thunder.jit(program), torch.ones(2)
    assert torch.equal(compiled(x), x * 3)
    owner.a = 1
    assert torch.equal(compiled(x), x * 2)
    assert torch.equal(compiled(x), x * 3)


def deletes(owner: types.CellType) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a program that deletes the closure variable of a cell, or notes that it has no value."""

    def delete(x: torch.Tensor) -> torch.Tensor:
        nonlocal variable
        try:
            del variable
        except NameError:
            return x * 3
        return x * 2

    variable = 1
    return types.FunctionType(delete.__code__, globals(), closure=(owner,))


def test_a_closure_variable_is_deleted_at_each_call() -> None:
    cell = types.CellType(1)
    compiled, x = thunder.jit(deletes(cell)), torch.ones(2)
    for _ in range(2):
        assert torch.equal(compiled(x), x * 2)
        assert torch.equal(compiled(x), x * 3)
        assert cell == types.CellType()
        cell.cell_contents = 1


def test_a_closure_variable_that_is_set_and_deleted_is_empty_afterwards() -> None:
    variable = 1

    def program(x: torch.Tensor) -> torch.Tensor:
        nonlocal variable
        variable = 2
        del variable
        return x * 2

    compiled, x = thunder.jit(program), torch.ones(2)
    for _ in range(3):
        assert torch.equal(compiled(x), x * 2)
        with pytest.raises(NameError):
            print(variable)
    assert thunder.cache_misses(compiled) == 2  # with and without a value at the start


def test_defaults_of_a_function_are_set_and_deleted() -> None:
    def function(a: int = 1) -> int:
        return a

    def program(x: torch.Tensor) -> torch.Tensor:
        function.__defaults__ = (2,)
        del function.__defaults__
        return x * 2

    compiled, x = thunder.jit(program), torch.ones(2)
    for _ in range(2):
        assert torch.equal(compiled(x), x * 2)
        assert function.__defaults__ is None
        function.__defaults__ = (3,)


def test_a_write_to_a_readonly_attribute_raises_eagers_error() -> None:
    def function() -> None: ...

    log = []

    def program(x: torch.Tensor) -> torch.Tensor:
        log.append(1)
        try:
            function.__closure__ = None
        except AttributeError:
            log.append(2)
        return x * len(log)

    x = torch.ones(2)
    assert torch.equal(thunder.jit(program)(x), x * 2)
    assert log == [1, 2]
