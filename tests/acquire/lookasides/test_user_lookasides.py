"""The user's lookasides: functions that are called in place of the functions that the program calls."""

from __future__ import annotations

import functools
import math
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import thunder_core as thunder
from thunder_core import Lookaside
from thunder_core import functional as functions
from thunder_core.foundation.errors import CannotReplay, RecipeConflict, WrongInputs

X = torch.tensor([1.0, 2.0])


def doubled(x: Tensor) -> Tensor:
    return x * 2


def tripled(x: Tensor) -> Tensor:
    """Return three times the tensor."""
    return x * 3


class Scaled:
    """An object with methods of each kind."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def of(self, x: Tensor) -> Tensor:
        return x * self.factor

    @classmethod
    def made(cls, x: Tensor) -> Tensor:
        return cls(5.0).of(x)

    @staticmethod
    def plain(x: Tensor) -> Tensor:
        return x * 7

    def __call__(self, x: Tensor) -> Tensor:
        return x + self.factor


class Negated(Scaled):
    """A class that replaces another."""

    def of(self, x: Tensor) -> Tensor:
        return -x * self.factor


def square_root(number: float) -> float:
    return number


def generated(x: Tensor) -> Iterator[Tensor]:
    yield x


def generated_twice(x: Tensor) -> Iterator[Tensor]:
    for made in generated(x):
        yield made
        yield made * 10


SCALED = Scaled(3.0)

# By name: the function, its replacement, the program, and the expected result.
CASES: dict[str, tuple[Any, Any, Callable[[Tensor], Any], Any]] = {
    "a function": (doubled, tripled, lambda x: doubled(x) + 1, X * 3 + 1),
    "a function by keywords": (doubled, tripled, lambda x: doubled(x=x), X * 3),
    "a partial function": (doubled, tripled, lambda x: functools.partial(doubled, x)(), X * 3),
    "a function that C calls": (doubled, tripled, lambda x: sum(map(doubled, [x, x])), X * 6),
    "a method": (Scaled.of, lambda self, x: x - self.factor, lambda x: SCALED.of(x), X - 3),
    "a method of the class": (Scaled.of, lambda self, x: x - self.factor, lambda x: Scaled.of(SCALED, x), X - 3),
    "a class method": (Scaled.made, tripled, lambda x: Scaled.made(x), X * 3),
    "a static method": (Scaled.plain, tripled, lambda x: SCALED.plain(x), X * 3),
    "a class": (Scaled, Negated, lambda x: Scaled(2.0).of(x), -X * 2),
    "calls of objects": (Scaled.__call__, lambda self, x: x * 9, lambda x: SCALED(x), X * 9),
    "a function of C": (math.sqrt, square_root, lambda x: x * math.sqrt(4.0), X * 4),
    "a function of PyTorch": (torch.relu, tripled, lambda x: torch.relu(-x), -X * 3),
    "a Python function of PyTorch": (functional.relu, tripled, lambda x: functional.relu(-x), -X * 3),
    "a method of tensors": (Tensor.relu, tripled, lambda x: (-x).relu(), -X * 3),
    "a method of lists": (list.append, lambda items, item: items.insert(0, item), lambda x: appended(x), (X, 1)),
    "a function for one of C": (doubled, torch.neg, lambda x: doubled(x), -X),
    "an object for a function": (doubled, SCALED, lambda x: doubled(x), X + 3),
    "a generator": (generated, generated_twice, lambda x: list(generated(x)), [X, X * 10]),
}


def appended(x: Tensor) -> tuple[Any, ...]:
    items: list[Any] = [1]
    items.append(x)
    return tuple(items)


@pytest.mark.parametrize("name", CASES)
def test_function_that_a_program_calls_is_replaced(name: str) -> None:
    function, replacement, program, expected = CASES[name]
    torch.testing.assert_close(thunder.jit(program, lookasides=[Lookaside(function, replacement)])(X), expected)
    assert not matches(thunder.jit(program)(X), expected)  # without the lookaside


def matches(result: Any, expected: Any) -> bool:
    try:
        torch.testing.assert_close(result, expected)
    except (AssertionError, TypeError):
        return False
    return True


def factorial(n: int, x: Tensor) -> Tensor:
    return x if n == 0 else n * factorial(n - 1, x)


def test_replacement_calls_the_original_whose_callees_are_replaced() -> None:
    calls: list[int] = []

    def counted(n: int, x: Tensor) -> Tensor:
        calls.append(n)
        return factorial(n, x) + 1

    compiled = thunder.jit(lambda x: factorial(2, x), lookasides=[Lookaside(factorial, counted)])
    torch.testing.assert_close(compiled(X), 2 * (1 * (X + 1) + 1) + 1)
    assert calls == [2, 1, 0]


def test_reads_of_a_replacement_are_guarded() -> None:
    scale = [2.0]
    compiled = thunder.jit(lambda x: doubled(x), lookasides=[Lookaside(doubled, lambda x: x * scale[0])])
    torch.testing.assert_close(compiled(X), X * 2)
    scale[0] = 5.0
    torch.testing.assert_close(compiled(X), X * 5)


def test_a_condition_chooses_among_the_calls() -> None:
    only_vectors = Lookaside(doubled, tripled, when=lambda x: x.dim() == 1)
    compiled = thunder.jit(lambda x: doubled(x) + doubled(x[0]), lookasides=[only_vectors])
    torch.testing.assert_close(compiled(X), X * 3 + X[0] * 2)


def test_modules_and_training_follow_the_replacement() -> None:
    def halved(self: nn.Linear, x: Tensor) -> Tensor:
        return nn.Linear.forward(self, x) / 2

    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    compiled = thunder.jit(model, lookasides=[Lookaside(nn.Linear.forward, halved)])
    compiled(X).sum().backward()
    weight = model[0].weight
    (expected,) = torch.autograd.grad(torch.tanh(functional.linear(X, weight, model[0].bias) / 2).sum(), weight)
    torch.testing.assert_close(weight.grad, expected)
    assert thunder.last_backward_reason(compiled) == ""


def test_a_compiled_function_keeps_its_own_lookasides() -> None:
    lookaside = Lookaside(doubled, tripled)
    inner, plain = thunder.jit(lambda x: doubled(x), lookasides=[lookaside]), thunder.jit(lambda x: doubled(x))
    torch.testing.assert_close(thunder.jit(lambda x: inner(x) + doubled(x))(X), X * 5)
    torch.testing.assert_close(thunder.jit(lambda x: plain(x) + doubled(x), lookasides=[lookaside])(X), X * 5)
    torch.testing.assert_close(thunder.jit(lambda x: inner(x) + doubled(x), lookasides=[lookaside])(X), X * 6)


def test_a_lookaside_may_compile() -> None:
    compiled = thunder.jit(lambda x: doubled(x), lookasides=[Lookaside(doubled, thunder.jit(tripled))])
    torch.testing.assert_close(compiled(X), X * 3)


def test_functional_programs_have_lookasides() -> None:
    compiled = functions.jit(program, lookasides=[Lookaside(doubled, tripled)])
    torch.testing.assert_close(compiled(X), X * 3)


def program(x: Tensor) -> Tensor:
    return doubled(x)


def test_a_pickle_keeps_lookasides() -> None:
    compiled = thunder.jit(nn.Softsign(), lookasides=[Lookaside(functional.softsign, tripled)])
    torch.testing.assert_close(pickle.loads(pickle.dumps(compiled))(X), X * 3)


def test_lookasides_are_listed_with_their_replacements() -> None:
    listed = thunder.lookasides(thunder.jit(program, lookasides=[Lookaside(doubled, tripled)]))
    assert (listed[0].function, listed[0].summary) == (f"{__name__}.doubled", "Return three times the tensor.")
    assert listed[1:] == thunder.lookasides()
    assert "torch.autograd.grad" in [described.function.replace("__init__.", "") for described in listed[1:]]
    assert all(described.is_builtin and described.summary for described in listed[1:])


def raising(x: Tensor) -> Tensor:
    raise ValueError("of the replacement")


def test_error_of_a_replacement_is_raised_without_a_run_in_eager() -> None:
    """Eager PyTorch would compute something else."""
    calls: list[int] = []

    def noted(x: Tensor) -> Tensor:
        calls.append(1)
        return doubled(x)

    compiled = thunder.jit(noted, lookasides=[Lookaside(doubled, raising)])
    for _ in range(2):
        with pytest.raises(ValueError, match="of the replacement"):
            compiled(X)
    assert calls == []


def test_lazy_parameters_are_refused() -> None:
    compiled = thunder.jit(nn.LazyLinear(2), lookasides=[Lookaside(functional.linear, raising)])
    with pytest.raises(CannotReplay, match="lazy parameters"):
        compiled(X)


def test_invalid_lookaside_is_refused() -> None:
    with pytest.raises(WrongInputs, match="the replacement of a lookaside is 3, which cannot be called"):
        Lookaside(doubled, 3)  # type: ignore[arg-type]
    with pytest.raises(WrongInputs, match="the when of a lookaside is 3"):
        Lookaside(doubled, tripled, when=3)  # type: ignore[arg-type]
    with pytest.raises(WrongInputs, match="is not a lookaside"):
        thunder.jit(doubled, lookasides=[tripled])  # type: ignore[list-item]
    with pytest.raises(RecipeConflict, match=r"two lookasides replace .*doubled"):
        thunder.jit(doubled, lookasides=[Lookaside(doubled, tripled), Lookaside(doubled, torch.neg)])
