"""An `except` block around operations that raise depending on values is entered if eager PyTorch enters it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.linalg import LinAlgError

import thunder_core as thunder

GOOD, BAD = torch.eye(2), -torch.eye(2)
SINGULAR = torch.zeros(2, 2)


def falls_back(a: Tensor) -> Tensor:
    try:
        return torch.linalg.cholesky(a)
    except LinAlgError:
        return torch.zeros_like(a)


def suppresses(a: Tensor) -> Tensor:
    result = a
    with contextlib.suppress(LinAlgError):
        result = torch.linalg.cholesky(a)
    return result + 1


def retries(a: Tensor) -> Tensor:
    """Add a growing multiple of the identity until the factorization succeeds, as gpytorch does."""
    for jitter in (0.0, 1e-3, 2.0):
        try:
            return torch.linalg.cholesky(a + jitter * torch.eye(2))
        except LinAlgError:
            continue
    return a


def tells_the_message(a: Tensor) -> Any:
    try:
        return torch.linalg.inv(a), ""
    except RuntimeError as error:
        return torch.linalg.pinv(a), str(error)


def solves(a: Tensor) -> Tensor:
    try:
        return torch.linalg.solve(a, a + 1)
    except LinAlgError:
        return a - 1


def solves_a_tensor_equation(a: Tensor) -> Tensor:
    try:
        return torch.linalg.tensorsolve(a, a[0])
    except RuntimeError:
        return a - 1


def catches_in_the_caller(a: Tensor) -> Tensor:
    try:
        return twice(a)
    except LinAlgError:
        return a.sum()
    finally:
        a = a + 1


def twice(a: Tensor) -> Tensor:
    return torch.linalg.cholesky(a) @ torch.linalg.inv(a)


def catches_what_is_raised_anew(a: Tensor) -> Tensor:
    try:
        try:
            return torch.linalg.cholesky(a)
        except LinAlgError as error:
            raise ValueError("not positive definite") from error
    except ValueError:
        return a * 2


def picks(a: Tensor) -> Tensor:
    try:
        return a[(a.sum() * 2).long().reshape(1)] * 2
    except IndexError:
        return a * 0


def divides(a: Tensor) -> Tensor:
    try:
        return a * (1 / a.sum().item())
    except ZeroDivisionError:
        return a - 1


def takes_a_root(a: Tensor) -> Tensor:
    try:
        return a * math.sqrt(a.sum().item())
    except ValueError:
        return a - 1


def draws(a: Tensor) -> Tensor:
    noise = torch.rand(2)
    try:
        result = torch.linalg.inv(a)
    except RuntimeError:
        result = a
    return result + noise + torch.rand(2)


def asserts(a: Tensor) -> Tensor:
    try:
        torch._assert_async((a >= 0).all(), "negative")
    except RuntimeError:
        return a * 0
    return a


def samples(a: Tensor) -> Tensor:
    try:
        return torch.multinomial(a[0], 1) * 0
    except RuntimeError:
        return a


class Quiet:
    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> bool:
        return kind is not None and issubclass(kind, RuntimeError)


def has_a_manager_that_suppresses(a: Tensor) -> Tensor:
    with Quiet():
        a = torch.linalg.inv(a)
    return a + 1


PROGRAMS = (
    falls_back, suppresses, retries, tells_the_message, solves, solves_a_tensor_equation, catches_in_the_caller,
    catches_what_is_raised_anew, picks, divides, takes_a_root, draws, asserts, samples, has_a_manager_that_suppresses,
)  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("first", [GOOD, BAD, SINGULAR])
def test_value_dependent_error_is_caught_as_in_eager(program: Callable[[Tensor], Any], first: Tensor) -> None:
    compiled = thunder.jit(program)
    for a in (first, GOOD, BAD, SINGULAR, -3 * GOOD, GOOD, BAD, SINGULAR):
        torch.manual_seed(0)
        found = compiled(a)
        torch.manual_seed(0)
        wanted = program(a)
        if isinstance(wanted, tuple):
            assert found[1] == wanted[1]
            found, wanted = found[0], wanted[0]
        torch.testing.assert_close(found, wanted)


def test_each_outcome_has_one_program() -> None:
    compiled = thunder.jit(falls_back)
    for _ in range(4):
        compiled(GOOD)
        compiled(BAD)
    assert thunder.cache_misses(compiled) == 2


def test_gradients_after_a_caught_error_match_eager() -> None:
    compiled = thunder.jit(retries)
    for a in (GOOD, BAD, GOOD, BAD):
        found, wanted = (a.clone().requires_grad_() for _ in range(2))
        compiled(found).sum().backward()
        retries(wanted).sum().backward()
        torch.testing.assert_close(found.grad, wanted.grad)


def test_an_error_that_the_program_does_not_catch_is_raised() -> None:
    def program(a: Tensor) -> Tensor:
        try:
            return torch.linalg.cholesky(a)
        except KeyError:
            return a

    compiled = thunder.jit(program)
    for a in (GOOD, BAD, GOOD, BAD):
        if a is GOOD:
            torch.testing.assert_close(compiled(a), program(a))
            continue
        with pytest.raises(LinAlgError, match="not positive-definite"):
            compiled(a)


def test_error_is_raised_if_values_are_refused() -> None:
    compiled = thunder.jit(falls_back, data_dependent="error")
    torch.testing.assert_close(compiled(GOOD), falls_back(GOOD))
    with pytest.raises(LinAlgError, match="not positive-definite"):
        compiled(BAD)


# ---- writes before and inside the block ------------------------------------------------------------------------------


def writes_in_the_block(x: Tensor, a: Tensor) -> Tensor:
    try:
        x.add_(1)
        inverse = torch.linalg.inv(a)
    except RuntimeError:
        inverse = a * 0 - 1
    return inverse + x


def writes_on_all_sides(x: Tensor, a: Tensor) -> Tensor:
    x.mul_(2)
    try:
        factor = torch.linalg.cholesky(a)
    except LinAlgError:
        x.add_(10)
        factor = a
    x.sub_(1)
    return factor.sum() + x


def writes_in_a_loop(x: Tensor, a: Tensor) -> Tensor:
    for number in range(3):
        x.add_(number)
        try:
            return torch.linalg.cholesky(a + number * 2 * torch.eye(2)) + x
        except LinAlgError:
            x.mul_(2)
    return x * 0


def writes_by_index(x: Tensor, a: Tensor) -> Tensor:
    try:
        x[0] = 5.0
        item = x[a.long().sum()]
    except IndexError:
        item = x.sum()
    return item + x


def writes_to_a_view(x: Tensor, a: Tensor) -> Tensor:
    view = x.view(-1)
    view += 1
    try:
        torch.linalg.inv(a)
    except LinAlgError:
        view *= 3
    finally:
        view += 1
    return x * 1


def writes_what_was_drawn(x: Tensor, a: Tensor) -> Tensor:
    x.add_(torch.rand(2))
    try:
        inverse = torch.linalg.inv(a)
    except RuntimeError:
        inverse = a
    return inverse + x + torch.rand(2)


def catches_twice(x: Tensor, a: Tensor) -> Tensor:
    x.add_(1)
    try:
        result = torch.linalg.inv(a)
    except RuntimeError:
        result = a
    with contextlib.suppress(LinAlgError):
        result = result + torch.linalg.cholesky(a)
        x.add_(100)
    return result + x


class Counting(torch.nn.Module):
    """A module that counts its calls in a buffer and in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.seen: list[int] = []

    def forward(self, x: Tensor, a: Tensor) -> Tensor:
        """Return the inverse of a matrix, or the matrix itself."""
        self.calls += 1
        self.seen.append(1)
        with contextlib.suppress(LinAlgError):
            a = torch.linalg.inv(a)
        self.calls *= 2
        return a * self.calls + x


WRITING = (
    writes_in_the_block, writes_on_all_sides, writes_in_a_loop, writes_by_index, writes_to_a_view,
    writes_what_was_drawn, catches_twice,
)  # fmt: skip


@pytest.mark.parametrize("executors", [("torch",), ("inductor", "torch")])
@pytest.mark.parametrize("program", WRITING)
def test_writes_around_a_caught_error_happen_once(program: Callable[..., Tensor], executors: tuple[str, ...]) -> None:
    compiled = thunder.jit(program, executors=executors)
    for a in (2 * GOOD, SINGULAR, BAD, 2 * GOOD, SINGULAR, 3 * GOOD):
        found, wanted = torch.ones(2), torch.ones(2)
        torch.manual_seed(0)
        result = compiled(found, a)
        torch.manual_seed(0)
        torch.testing.assert_close(result, program(wanted, a))
        torch.testing.assert_close(found, wanted)


def test_writes_of_a_module_around_a_caught_error_happen_once() -> None:
    eager, compiled = Counting(), thunder.jit(Counting())
    for a in (GOOD, SINGULAR, GOOD, SINGULAR):
        torch.testing.assert_close(compiled(torch.ones(2), a), eager(torch.ones(2), a))
        assert compiled.calls == eager.calls
        assert compiled.seen == eager.seen


@pytest.mark.parametrize("order", [(9, 2, 1, 9, -2), (2, 9, 0, -9, 2)])
@pytest.mark.parametrize(
    "take",
    [
        lambda x, place: x[place],
        lambda x, place: x[place, None],
        lambda x, place: x[place.item()],
        lambda x, place: torch.select(x, 0, place.item()),
        lambda x, place: x.index_select(0, place.view(1)),
    ],
)
def test_an_index_out_of_range_is_caught_as_in_eager(take: Callable[..., Tensor], order: tuple[int, ...]) -> None:
    def program(x: Tensor, place: Tensor) -> Tensor:
        try:
            return take(x, place)
        except IndexError:
            return x.sum()

    compiled, x = thunder.jit(program), torch.arange(4.0)
    for place in map(torch.tensor, order):
        torch.testing.assert_close(compiled(x, place), program(x, place))


def test_second_call_at_a_line_raises_after_an_equal_call_did_not() -> None:
    def program(x: Tensor) -> list[Any]:
        results: list[Any] = []
        for offset in (0, 1, 2):
            try:
                results.append(x[x.long() + torch.tensor(offset)])
            except IndexError as error:
                results.append(str(error))
        return results

    compiled = thunder.jit(program)
    for x in (torch.ones(2), torch.ones(2), torch.zeros(2)):
        assert str(compiled(x)) == str(program(x))
