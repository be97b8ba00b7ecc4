"""Functions that need too many values of tensors are called in eager PyTorch, between the lines of a program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import thunder_core as thunder
from thunder_core.errors import RecompileWarning


class Order(torch.nn.Module):
    """An object that the program makes, whose method needs an array."""

    def __init__(self, sign: float) -> None:
        super().__init__()
        self.sign = sign

    @torch.no_grad()
    def forward(self, scores: Tensor) -> Tensor:
        return torch.as_tensor(np.argsort(self.sign * scores.numpy(), kind="stable"))


def by_module(x: Tensor, seen: list[int]) -> Tensor:
    return x[Order(-1.0)(x.detach().sum(1))].cumsum(0)


def places(scores: dict[str, Tensor]) -> tuple[Tensor, list[Tensor]]:
    order = np.argsort(scores["rows"].numpy(), kind="stable")
    return torch.from_numpy(order), [torch.from_numpy(order[::-1].copy())]


def by_function(x: Tensor, seen: list[int]) -> Tensor:
    first, (last,) = places({"rows": x.detach().sum(1)})
    return (x[first] * x[last]).exp()


def number(scores: Tensor) -> float:
    return float(np.median(scores.numpy()))


def by_number(x: Tensor, seen: list[int]) -> Tensor:
    return x * number(x.detach()[:, 0])


def in_a_loop(x: Tensor, seen: list[int]) -> Tensor:
    return torch.stack([row[places({"rows": row.detach()[:, None]})[0]] for row in x.unbind()]).sin()


def written(scores: Tensor, seen: list[int]) -> Tensor:
    seen.append(int(np.argmax(scores.numpy())))
    return scores * 2


def that_writes(x: Tensor, seen: list[int]) -> Tensor:
    return x * written(x.detach().sum(1), seen)[:, None]


def scaled(x: Tensor) -> Tensor:
    return x * float(np.max(x.detach().numpy()))


def that_needs_a_gradient(x: Tensor, seen: list[int]) -> Tensor:
    return scaled(x).tanh()


IN_PIECES = [by_module, by_function, in_a_loop, by_number]
AS_A_WHOLE = [that_writes, that_needs_a_gradient]


def outcome(program: Callable[..., Any], step: int) -> tuple[Tensor, Tensor, list[int]]:
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(step), requires_grad=True)
    seen: list[int] = []
    result = program(x, seen)
    (gradient,) = torch.autograd.grad(result.square().sum(), x)
    return result.detach(), gradient, seen


@pytest.mark.filterwarnings("ignore::thunder_core.errors.RecompileWarning")
@pytest.mark.parametrize("program", [*IN_PIECES, *AS_A_WHOLE], ids=lambda program: program.__name__)
def test_programs_that_need_arrays_equal_eager_at_each_call(program: Callable[..., Any]) -> None:
    compiled = thunder.jit(program, executors=("torch",))
    for step in range(8):
        found, expected = outcome(compiled, step), outcome(program, step)
        torch.testing.assert_close(found[:2], expected[:2])
        assert found[2] == expected[2]
    reasons = [reason for reason in thunder.recompile_reasons(compiled) if "in eager PyTorch" in reason]
    assert any(reason.startswith(f"{__file__}:") for reason in reasons), reasons
    is_whole = any("are made in eager PyTorch" in reason for reason in reasons)
    assert is_whole == (program in AS_A_WHOLE), reasons
    if program in IN_PIECES:
        misses = thunder.cache_misses(compiled)
        outcome(compiled, 99)
        assert thunder.cache_misses(compiled) == misses
        assert any(bsym.symbol.name == "eager.call" for bsym in thunder.last_traces(compiled)[0].bound_symbols)
        assert (thunder.last_backward_reason(compiled) == "") == (program is not by_number)


def test_the_line_that_is_called_in_eager_is_named_once() -> None:
    compiled = thunder.jit(by_function, executors=("torch",))
    with pytest.warns(RecompileWarning) as told:
        for step in range(8):
            outcome(compiled, step)
    line = places.__code__.co_firstlineno + 1
    words = [str(result.message) for result in told if "is called in eager PyTorch" in str(result.message)]
    assert len(words) == 1
    assert f"{__file__}:{line}" in words[0]


@pytest.mark.filterwarnings("ignore::thunder_core.errors.RecompileWarning")
def test_one_program_with_an_eager_call_serves_all_sizes() -> None:
    compiled = thunder.jit(by_function, executors=("torch",))
    for step in range(12):
        x = torch.randn(step % 5 + 2, 3, generator=torch.Generator().manual_seed(step))
        torch.testing.assert_close(compiled(x, []), by_function(x, []))
    assert thunder.cache_misses(compiled) == 5  # three arrays, their second size, and the program with the eager call


def of_list(tensors: list[Tensor]) -> Tensor:
    return by_function(torch.cat(tensors), [])


@pytest.mark.filterwarnings("ignore::thunder_core.errors.RecompileWarning")
def test_new_arrays_in_calls_of_several_structures_are_soon_read_in_eager() -> None:
    """Each number of tensors has its own programs, so that no call meets many programs for other arrays."""
    compiled = thunder.jit(of_list, executors=("torch",))
    for step in range(15):
        generator = torch.Generator().manual_seed(step)
        tensors = [torch.randn(2, 3, generator=generator) for _ in range(step % 5 + 1)]
        torch.testing.assert_close(compiled(tensors), of_list(tensors))
    assert thunder.cache_misses(compiled) <= 9  # four arrays, and a program for each number of tensors
    assert any("4 different values" in reason for reason in thunder.recompile_reasons(compiled))


class Matched(torch.nn.Module):
    """A model that updates a buffer, and then selects at most two rows for each of its targets."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor, targets: list[Tensor]) -> Tensor:
        self.count.add_(1)
        y = self.linear(x)
        selected = self.select(y.detach().sum(1), targets)
        total: Tensor = sum(y[rows].sum() for rows in selected) + torch.rand(())
        return total

    def select(self, scores: Tensor, targets: list[Tensor]) -> list[Tensor]:
        order = np.argsort(scores.numpy(), kind="stable")
        return [torch.from_numpy(order[: min(2, len(target))].copy()) for target in targets]


@pytest.mark.filterwarnings("ignore::thunder_core.errors.RecompileWarning")
def test_calls_whose_eager_function_returns_unexpected_sizes_equal_eager() -> None:
    """A program takes a size of two for the size of a target. For a larger target, its writes are undone."""
    model, compiled_model = Matched(), Matched()
    compiled_model.load_state_dict(model.state_dict())
    compiled = thunder.jit(compiled_model, executors=("torch",))
    for step, sizes in enumerate([(3, 1), (1, 3), (3, 3), (1, 1), (2, 2), (3, 4), (4, 3), (2, 4)]):
        x = torch.randn(5, 3, generator=torch.Generator().manual_seed(step))
        targets = [torch.zeros(size) for size in sizes]
        states = []
        for call, module in ((compiled, compiled_model), (model, model)):
            torch.manual_seed(step)
            call(x, targets).backward()
            states.append((torch.get_rng_state(), module.count.clone(), module.linear.weight.grad))
        torch.testing.assert_close(*states)
    assert any("was of shape" in reason for reason in thunder.recompile_reasons(compiled))


class Settings:
    """An object that a program creates and changes."""

    factor = 1.0


def scaled_order(scores: Tensor, settings: Settings) -> Tensor:
    order = np.argsort(scores.numpy(), kind="stable")
    return torch.from_numpy(order * settings.factor)


def changed_later(x: Tensor) -> Tensor:
    settings = Settings()
    settings.factor = 2.0
    order = scaled_order(x * 1, settings)
    settings.factor = 5.0
    return order


@pytest.mark.filterwarnings("ignore::thunder_core.errors.RecompileWarning")
def test_eager_function_gets_an_object_as_it_was_at_the_call() -> None:
    compiled = thunder.jit(changed_later, executors=("torch",))
    for step in range(6):
        x = torch.randn(4, generator=torch.Generator().manual_seed(step))
        torch.testing.assert_close(compiled(x), changed_later(x))
    assert any("called in eager PyTorch" in reason for reason in thunder.recompile_reasons(compiled))


def chosen(scores: Tensor, first: Any, second: Any) -> Any:
    return first if int(np.argsort(scores.numpy())[0]) == 0 else second


@pytest.mark.filterwarnings("ignore::thunder_core.errors.RecompileWarning")
@pytest.mark.parametrize(
    "arguments", [(torch.zeros(2), torch.ones(2)), (Order(2.0), Order(5.0))], ids=["tensor", "object"]
)
def test_function_that_returns_one_of_its_arguments_returns_the_argument_of_each_call(
    arguments: tuple[Any, Any],
) -> None:
    def program(x: Tensor, first: Any, second: Any) -> Tensor:
        result = chosen(x, first, second)
        return x * 2 + (result.sign if isinstance(result, Order) else result)

    compiled = thunder.jit(program)
    for step in range(12):
        x = torch.tensor([step / 7, 1.0 if step % 3 else -1.0])
        assert torch.equal(compiled(x, *arguments), program(x, *arguments))
    assert "is called in eager PyTorch" in " ".join(thunder.recompile_reasons(compiled))


@pytest.mark.filterwarnings("ignore::thunder_core.errors.RecompileWarning")
def test_reason_for_eager_calls_names_the_function_that_reads_values_and_a_fix_for_it() -> None:
    compiled = thunder.jit(that_writes, executors=("torch",))
    with pytest.warns(RecompileWarning) as warned:
        for step in range(8):
            outcome(compiled, step)
    (text,) = (str(result.message) for result in warned if "are made in eager PyTorch" in str(result.message))
    assert "the function `written`, which reads values of tensors, writes to its arguments or to other state" in text
    assert "compiled function" not in text and "fix: read the value in a separate function" in text
