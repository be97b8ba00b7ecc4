"""Closures, globals and the functions that read them behave under jit as in CPython."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import thunder_core as thunder

X = torch.tensor([1.0, 2.0])
x = 5
global_lst: list[str] = []


def foo() -> int:
    return x


def test_global_that_changes_between_calls_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = thunder.jit(foo)
    assert compiled() == 5
    monkeypatch.setitem(globals(), "x", 6)
    assert compiled() == 6
    monkeypatch.setitem(globals(), "x", "text")
    assert compiled() == "text"


def test_argument_captured_by_an_inner_function_matches_eager() -> None:
    def outer(a: Tensor, n: int) -> Tensor:
        def inner() -> Tensor:
            return a * n

        return inner()

    compiled = thunder.jit(outer)
    assert torch.equal(compiled(X, 3), X * 3)
    assert torch.equal(compiled(X, 4), X * 4)


def deletes(which: type[Exception] | None) -> Any:
    value = 1

    def inner() -> None:
        nonlocal value
        del value

    inner()
    return value


def test_nonlocal_that_the_inner_function_deletes_matches_eager() -> None:
    with pytest.raises(NameError) as eager:
        deletes(None)
    with pytest.raises(NameError) as ours:
        thunder.jit(deletes)(None)
    assert type(ours.value) is type(eager.value)
    assert str(ours.value) == str(eager.value)


def lazily() -> tuple[Callable[[], list[str]], Callable[[], Any]]:
    lst = None

    def add() -> list[str]:
        nonlocal lst
        if lst is None:
            lst = []
        lst.append("#")
        return lst

    return add, lambda: lst


def test_compiled_inner_function_creates_its_list_once() -> None:
    add, read = lazily()
    compiled = thunder.jit(add)
    assert compiled() == ["#"]
    first = read()
    assert first == ["#"]
    assert compiled() == ["#", "#"]
    assert read() is first
    assert compiled() == ["#"] * 3


def test_compiled_outer_function_creates_a_list_at_each_call() -> None:
    def outer() -> tuple[list[str], list[str]]:
        add, _ = lazily()
        first = list(add())
        return first, add()

    compiled = thunder.jit(outer)
    for _ in range(2):
        assert compiled() == (["#"], ["#", "#"])


def test_compiled_inner_function_appends_to_a_global_list() -> None:
    global_lst.clear()
    lst1 = global_lst

    def add() -> list[str]:
        nonlocal lst1
        if lst1 is None:
            lst1 = []
        lst1.append("#")
        return lst1

    compiled = thunder.jit(add)
    assert compiled() == ["#"]
    assert compiled() == ["#", "#"]
    assert lst1 is global_lst
    assert compiled() is global_lst


class Holder:
    """An object that holds a closure."""

    def __init__(self, scale: float) -> None:
        def scaled(a: Tensor) -> Tensor:
            return a * scale

        self.function = scaled
        self.scale = scale

    def method(self, a: Tensor) -> Tensor:
        """Add the scale; used as a bound method."""
        return a + self.scale


def test_closures_of_objects_in_arguments_are_guarded() -> None:
    def program(a: Tensor, holders: dict[str, list[Holder]]) -> Tensor:
        for holder in holders["all"]:
            a = holder.function(a)
        return a

    compiled = thunder.jit(program)
    assert torch.equal(compiled(X, {"all": [Holder(2.0), Holder(3.0)]}), X * 6)
    assert torch.equal(compiled(X, {"all": [Holder(2.0), Holder(4.0)]}), X * 8)


def test_functions_in_dicts_bound_methods_and_partials() -> None:
    table: dict[str, Callable[..., Tensor]] = {
        "method": Holder(2.0).method,
        "partial": functools.partial(torch.add, alpha=3),
        "lambda": lambda a: -a,
    }

    def program(a: Tensor, name: str) -> Tensor:
        return table[name](a, a) if name == "partial" else table[name](a)

    compiled = thunder.jit(program)
    for name in table:
        assert torch.equal(compiled(X, name), program(X, name))
    table["lambda"] = torch.abs
    assert torch.equal(compiled(X, "lambda"), X.abs())
    table["method"].__self__.scale = 9.0  # type: ignore[attr-defined]
    assert torch.equal(compiled(X, "method"), X + 9)
    table["partial"].keywords["alpha"] = 5  # type: ignore[attr-defined]
    assert torch.equal(compiled(X, "partial"), X * 6)


def test_bound_methods_are_compiled() -> None:
    holder = Holder(2.0)
    compiled = thunder.jit(holder.method)
    assert torch.equal(compiled(X), X + 2)
    holder.scale = 3.0
    assert torch.equal(compiled(X), X + 3)


def test_partials_are_compiled() -> None:
    compiled = thunder.jit(functools.partial(lambda a, n: a * n, n=4))
    assert torch.equal(compiled(X), X * 4)


def test_closures_made_in_a_loop_match_eager() -> None:
    def program(a: Tensor) -> list[Tensor]:
        late = [lambda: a * n for n in range(3)]  # noqa: B023 (late binding is what is tested)
        early = [lambda n=n: a * n for n in range(3)]
        return [f() for f in (*late, *early)]

    compiled = thunder.jit(program)
    for _ in range(2):
        for ours, eager in zip(compiled(X), program(X), strict=True):
            assert torch.equal(ours, eager)


def test_nonlocal_counters_match_eager() -> None:
    count = 0

    def program(a: Tensor) -> Tensor:
        nonlocal count
        count += 1
        return a * count

    compiled = thunder.jit(program)
    assert [compiled(X)[0].item() for _ in range(3)] == [1.0, 2.0, 3.0]
    assert count == 3


def test_functions_that_programs_make_can_be_called_afterwards() -> None:
    def program(a: Tensor) -> Callable[[int], Tensor]:
        b = a * 2
        return lambda n: b + n

    compiled = thunder.jit(program)
    for _ in range(2):
        assert torch.equal(compiled(X)(1), X * 2 + 1)


def test_functions_that_programs_make_share_their_closure() -> None:
    def program(a: Tensor) -> tuple[Callable[[], None], Callable[[], list[Any]]]:
        held: list[Any] = [a + 1]

        def add() -> None:
            held.append(a)

        return add, lambda: held

    compiled = thunder.jit(program)
    for _ in range(2):
        add, get = compiled(X)
        add()
        assert [tensor.tolist() for tensor in get()] == [[2.0, 3.0], [1.0, 2.0]]


def with_itself(x: Tensor, n: int) -> Any:
    def function() -> Any:
        return function

    return x + 1, function() is function, function


def with_each_other(x: Tensor, n: int) -> Any:
    def even(count: int) -> Any:
        return x * n if count == 0 else odd(count - 1)

    def odd(count: int) -> Any:
        return -x if count == 0 else even(count - 1)

    return [even, {"odd": odd}]


def with_an_object(x: Tensor, n: int) -> Any:
    holder = Calling()
    holder.function = lambda: (holder, x + n)
    return holder


class Calling:
    function: Callable[..., Any]


def test_functions_that_refer_to_each_other_are_returned() -> None:
    for program in (with_itself, with_each_other, with_an_object):
        compiled = thunder.jit(program)
        for number in (2, 3):
            result, expected = compiled(X, number), program(X, number)
            if program is with_itself:
                assert result[2]() is result[2]
            elif program is with_each_other:
                even, odd = result[0], result[1]["odd"]
                torch.testing.assert_close((even(2), odd(2), odd(3)), (X * number, -X, X * number))
                assert even.__closure__[1].cell_contents is odd
            else:
                assert result.function()[0] is result
                torch.testing.assert_close(result.function()[1], expected.function()[1])
