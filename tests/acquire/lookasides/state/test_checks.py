"""PyTorch's functions that check values become lines of the program, whose errors and messages match eager."""

from __future__ import annotations

import contextlib
import random
import types
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import thunder_core as thunder
from thunder_core.foundation.errors import ThunderError


def of_all(x: Tensor) -> Tensor:
    """Run a check whose message contains tensors."""
    n = x.sum()
    torch._check_tensor_all(x > 0, lambda: f"not positive: {n} in {x}, at most {x.max():.1f}")
    return x.log()


def without_text(x: Tensor) -> Tensor:
    """Run a check without a message."""
    torch._check_tensor_all(x > 0)
    return x.log()


def of_a_class(x: Tensor) -> Tensor:
    """Run a check with another error class and a message that was made before."""
    text = f"not positive: {x}"
    torch._check_tensor_all_with(ValueError, x > 0, lambda: text)
    return x.log()


def asserted(x: Tensor) -> Tensor:
    """Run an assertion that is a function call."""
    torch._assert((x > 0).all(), f"not positive: {x}")
    return x.log()


def with_gradient(x: Tensor) -> Tensor:
    """Run a check whose message contains a tensor that requires a gradient."""
    y = x.clone().requires_grad_() * 2
    torch._check_tensor_all(x > 0, lambda: f"not positive: {y}")
    return x.log()


@pytest.mark.parametrize("program", [of_all, without_text, of_a_class, asserted, with_gradient])
@pytest.mark.parametrize("data_dependent", ["retrace", "error"])
def test_one_program_serves_all_values_and_raises_the_error_of_eager(
    program: Callable[[Tensor], Tensor], data_dependent: str
) -> None:
    compiled = thunder.jit(program, executors=("torch",), data_dependent=data_dependent)
    for step in (1, 2, 3):
        x = torch.tensor([1.0, 2.0]) * step
        assert torch.equal(compiled(x), program(x))
        with pytest.raises((RuntimeError, ValueError, AssertionError)) as wanted:
            program(-x)
        with pytest.raises(type(wanted.value)) as found:
            compiled(-x)
        assert str(found.value).splitlines()[0] == str(wanted.value).splitlines()[0]
        assert not isinstance(found.value, ThunderError)
    assert thunder.cache_misses(compiled) == 1


def test_a_check_that_fails_at_the_first_call_raises_the_error_of_eager() -> None:
    with pytest.raises(ValueError, match=r"not positive: tensor\(\[-1.\]\)"):
        thunder.jit(of_a_class, data_dependent="error")(-torch.ones(1))


def test_effects_before_a_check_match_eager() -> None:
    def program(x: Tensor, seen: list[str]) -> Tensor:
        seen.append(f"{x.sum():.0f}")
        torch._check_tensor_all(x > 0, lambda: f"not positive: {x}")
        seen.append("done")
        return x + 1

    compiled = thunder.jit(program, executors=("torch",))
    for values in ([1.0], [2.0], [-3.0]):
        found: list[str] = []
        wanted: list[str] = []
        for function, seen in ((compiled, found), (program, wanted)):
            try:
                function(torch.tensor(values), seen)
            except RuntimeError as error:
                seen.append(str(error).splitlines()[0])
        assert found == wanted
    assert thunder.cache_misses(compiled) == 1


def test_a_check_under_autograd_is_no_part_of_the_graph() -> None:
    compiled = thunder.jit(of_all, executors=("torch",))
    x, y = (torch.tensor([1.0, 2.0], requires_grad=True) for _ in range(2))
    compiled(x).sum().backward()
    of_all(y).sum().backward()
    assert torch.equal(x.grad, y.grad)  # type: ignore[arg-type]


def appends(x: Tensor) -> Tensor:
    """Run a check whose message appends to a list of the program."""
    seen: list[int] = []
    torch._check_tensor_all(x > 0, lambda: f"not positive {seen.append(1)}")
    return x * len(seen)


def counts(x: Tensor) -> Tensor:
    """Run a check whose message assigns a variable of the program."""
    number = 0

    def message() -> str:
        nonlocal number
        number += 1
        return "not positive"

    torch._check_tensor_all(x > 0, message)
    return x * number


def draws(x: Tensor) -> Tensor:
    """Run a check whose message draws random numbers."""
    torch._check_tensor_all(x > 0, lambda: f"not positive {torch.rand(1)}")
    return torch.rand(2)


def writes(x: Tensor) -> Tensor:
    """Run a check whose message writes to a tensor of the program."""
    y = x.clone()
    torch._check_tensor_all(x > 0, lambda: f"not positive {y.add_(1)}")
    return y


SHARED = types.SimpleNamespace(number=0)


def replaces(x: Tensor) -> Tensor:
    """Run a check whose message replaces a value that the program has just assigned."""
    SHARED.number = 1

    def message() -> str:
        SHARED.number = 2
        return "not positive"

    torch._check_tensor_all(x > 0, message)
    return x * SHARED.number


def draws_outside(x: Tensor) -> Tensor:
    """Run a check whose message draws a random number outside of PyTorch."""
    random.seed(3)
    torch._check_tensor_all(x > 0, lambda: f"not positive {random.random()}")
    return x * random.random()


def seeds(x: Tensor) -> Tensor:
    """Run a check whose message seeds a generator outside of PyTorch."""
    random.seed(3)
    torch._check_tensor_all(x > 0, lambda: f"not positive {random.seed(5)}")
    return x * random.random()


@pytest.mark.filterwarnings("ignore::thunder_core.foundation.errors.RecompileWarning")
@pytest.mark.parametrize("program", [appends, counts, draws, writes, replaces, draws_outside, seeds])
def test_message_with_a_side_effect_is_computed_only_if_the_check_fails(program: Callable[[Tensor], Tensor]) -> None:
    compiled, x = thunder.jit(program, executors=("torch",)), torch.ones(2)
    for seed in range(3):
        torch.manual_seed(seed)
        found = compiled(x)
        torch.manual_seed(seed)
        assert torch.equal(found, program(x))


def caught(x: Tensor) -> str:
    """Run a check whose error is caught."""
    try:
        torch._check_tensor_all(x > 0, lambda: f"not positive: {x}")
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return "positive"


def suppressed(x: Tensor) -> Tensor:
    """Run a check whose error is suppressed by a context manager."""
    with contextlib.suppress(AssertionError):
        torch._assert((x > 0).all(), "not positive")
        return x
    return x + 1


def caught_above(x: Tensor) -> Tensor:
    """Run a check whose error a caller catches, after a `finally`."""

    def inner() -> Tensor:
        try:
            return of_all(x)
        finally:
            x.add_(1)

    try:
        return inner()
    except RuntimeError:
        return x


@pytest.mark.parametrize("program", [caught, suppressed, caught_above])
def test_error_that_the_program_catches_does_not_end_the_call(program: Callable[[Tensor], Tensor]) -> None:
    compiled = thunder.jit(program, executors=("torch",))
    for sign in (1, -1, 1, -1):
        x = torch.tensor([1.0, 2.0]) * sign
        found, wanted = x.clone(), x.clone()
        assert repr(compiled(found)) == repr(program(wanted))
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("context", [torch.no_grad, torch.enable_grad])
def test_a_context_of_pytorch_and_a_finally_catch_nothing(context: Callable[[], torch.no_grad]) -> None:
    def program(x: Tensor, seen: list[int]) -> Tensor:
        try:
            with context():
                return of_all(x)
        finally:
            seen.append(1)

    compiled = thunder.jit(program, executors=("torch",), data_dependent="error")
    seen: list[int] = []
    assert torch.equal(compiled(torch.ones(2), seen), torch.zeros(2))
    with pytest.raises(RuntimeError, match="not positive: -2"):
        compiled(-torch.ones(2), seen)
    assert seen == [1, 1]
    assert thunder.cache_misses(compiled) == 1


def writes_in_a_finally(x: Tensor, seen: list[float]) -> Tensor:
    """Write to the input before and after a check, and to a list after the check."""
    try:
        x.add_(1)
        return of_all(x)
    finally:
        x.mul_(3)
        seen.append(1.0)


def draws_in_a_finally(x: Tensor, seen: list[float]) -> Tensor:
    """Draw random numbers before and after an operation that may raise."""
    try:
        return torch.rand(2)[x.long()]
    finally:
        seen.append(torch.rand(1).item())


@pytest.mark.filterwarnings("ignore::thunder_core.foundation.errors.RecompileWarning")
@pytest.mark.parametrize("program", [writes_in_a_finally, draws_in_a_finally])
def test_finally_of_a_failing_operation_runs(program: Callable[..., Tensor]) -> None:
    compiled = thunder.jit(program, executors=("torch",))
    for value in (1.0, -5.0, 1.0, -5.0, -5.0):
        outcomes = []
        for function in (compiled, program):
            x, seen = torch.full((2,), value), list[float]()
            torch.manual_seed(0)
            try:
                result = function(x, seen).tolist()
            except (IndexError, RuntimeError) as error:
                result = str(error).splitlines()[0]
            outcomes.append((result, x.tolist(), seen, torch.rand(1).item()))
        assert outcomes[0] == outcomes[1]


def test_message_that_raises_is_computed_only_if_the_check_fails() -> None:
    def program(x: Tensor) -> Tensor:
        torch._check_tensor_all(x > 0, lambda: f"{1 / 0}")
        return x + 1

    compiled = thunder.jit(program, executors=("torch",))
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    with pytest.raises(ZeroDivisionError):
        compiled(-torch.ones(2))
