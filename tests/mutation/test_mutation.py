"""Programs that write to tensors: results, arguments, gradients, errors and shared memory are eager's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.utils.parametrize
from torch import Tensor

import thunder_core as thunder
from tests.fusion.test_fuse import Replays
from tests.mutation.outcome import outcome
from tests.mutation.programs import PROGRAMS, leaf, numbers
from thunder_core.foundation.errors import OperationFailed, ThunderError

EXECUTORS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "torch": lambda: ("torch",),
    "regions": lambda: (Replays(), "torch"),
}


@pytest.mark.parametrize("executors", EXECUTORS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_mutating_program_equals_eager(name: str, executors: str) -> None:
    function, make = PROGRAMS[name]
    compiled = thunder.jit(function, executors=EXECUTORS[executors]())
    for _ in range(2):
        eager = outcome(function, make())
        assert eager.differences(outcome(compiled, make())) == []
    assert "error" in eager.facts or thunder.cache_misses(compiled) == 1


INDUCTOR = ("fused_around", "fused_views", "chain", "writes_through_views", "same_view_twice", "counting", "batch norm")


@pytest.mark.parametrize("name", INDUCTOR)
def test_mutating_program_with_inductor_equals_eager(name: str) -> None:
    function, make = PROGRAMS[name]
    compiled = thunder.jit(function, executors=("inductor", "torch"))
    with torch.no_grad():
        for _ in range(2):
            assert outcome(function, make()).differences(outcome(compiled, make()), exact=False) == []


def test_giving_a_tensor_the_memory_of_another_tensor_equals_eager() -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor, bool]:
        copied = x.clone()
        view = copied[0]
        result = copied.set_(x + 1)
        copied.mul_(2)
        x.set_(copied)
        x.add_(1)
        return copied, view, result is copied

    compiled = thunder.jit(program)
    for _ in range(3):
        expected, found = numbers(3), numbers(3)
        torch.testing.assert_close(compiled(found), program(expected))
        torch.testing.assert_close(found, expected)
    assert thunder.cache_misses(compiled) == 1


def test_giving_a_tensor_a_storage_is_refused_at_the_users_line() -> None:
    def program(x: Tensor) -> Tensor:
        x.set_((x + 1).untyped_storage())
        return x

    with pytest.raises(OperationFailed, match="`set_` gives a tensor the memory of a storage") as caught:
        thunder.jit(program, data_dependent="error")(numbers(3))
    assert caught.value.where is not None
    assert caught.value.where.function.endswith("program")


class Symmetric(torch.nn.Module):
    """A parametrization that can be inverted."""

    def forward(self, upper: Tensor) -> Tensor:
        return upper.triu() + upper.triu(1).T

    def right_inverse(self, weight: Tensor) -> Tensor:
        return weight.triu()


def test_assigning_to_a_parametrized_weight_equals_eager() -> None:
    linear = torch.nn.Linear(3, 3)
    torch.nn.utils.parametrize.register_parametrization(linear, "weight", Symmetric())
    twin = copy.deepcopy(linear)

    def program(linear: torch.nn.Linear, x: Tensor) -> Tensor:
        linear.weight = x
        return linear(x)

    compiled = thunder.jit(program)
    for x in (torch.eye(3), torch.ones(3, 3), torch.arange(9.0).reshape(3, 3)):
        torch.testing.assert_close(compiled(linear, x), program(twin, x))
        torch.testing.assert_close(linear.state_dict(), twin.state_dict())
    assert thunder.cache_misses(compiled) == 1


class Added(torch.nn.Module):
    """A parametrization that adds a tensor."""

    def __init__(self, addend: Tensor) -> None:
        super().__init__()
        self.addend = addend

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.addend


class Adapted(torch.nn.Module):
    """A linear layer whose parameters are parametrized during each call, as PEFT's LoRA of parameters does."""

    def __init__(self) -> None:
        super().__init__()
        self.base = torch.nn.Linear(3, 3)
        self.down = torch.nn.Parameter(torch.randn(1, 3))
        self.up = torch.nn.Parameter(torch.randn(3, 1))

    def forward(self, x: Tensor) -> Tensor:
        added = {"weight": self.up @ self.down, "bias": self.up[:, 0]}
        for name, addend in added.items():
            torch.nn.utils.parametrize.register_parametrization(self.base, name, Added(addend))
            self.base.parametrizations[name].original.requires_grad_(True)
        with torch.nn.utils.parametrize.cached():
            result = self.base(x)
        for name in added:
            torch.nn.utils.parametrize.remove_parametrizations(self.base, name, leave_parametrized=False)
        return result


def test_a_parametrization_during_the_call_equals_eager_with_one_program() -> None:
    torch.manual_seed(0)
    module = Adapted()
    twin = copy.deepcopy(module)
    compiled = thunder.jit(module)
    for _ in range(3):
        x = torch.randn(2, 3)
        expected, found = twin(x), compiled(x)
        torch.testing.assert_close(found, expected)
        expected.sum().backward()
        found.sum().backward()
        torch.testing.assert_close(module.state_dict(), twin.state_dict())
        for parameter, twins in zip(module.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(parameter.grad, twins.grad)
        assert type(module.base) is torch.nn.Linear
    assert thunder.cache_misses(compiled) == 1


def test_an_error_restores_inference_mode() -> None:
    def program(x: Tensor, index: Tensor) -> Tensor:
        with torch.inference_mode():
            return x.index_select(0, index)

    compiled = thunder.jit(program)
    assert compiled(numbers(3), torch.tensor([1])).is_inference()
    with pytest.raises(IndexError):
        compiled(numbers(3), torch.tensor([7]))
    assert not torch.is_inference_mode_enabled()
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    "question",
    [
        lambda x: x + 1 if x.is_leaf else x - 1,
        lambda x: x + 1 if x.storage_offset() else x - 1,
        lambda x: x + 1 if x._is_view() else x - 1,
        lambda x: x + 1 if x.is_inference() else x - 1,
        lambda x: x if x.is_inference() else x + x._version,
    ],
    ids=["is_leaf", "storage_offset", "is_view", "is_inference", "version"],
)
def test_queried_properties_of_an_argument_are_guarded(question: Callable[[Tensor], Tensor]) -> None:
    (x,) = leaf()
    with torch.inference_mode():
        made = numbers(4, 4)
    compiled = thunder.jit(question)
    for argument in (x, (x * 2)[:], numbers(5, 4)[1:], numbers(4, 4), numbers(4, 4)[:], made, (x * 2).add_(1), x):
        assert torch.equal(compiled(argument), question(argument))


@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
def test_versions_count_from_those_of_the_arguments(cache: str) -> None:
    def written(x: Tensor) -> tuple[int, ...]:
        before = x._version
        x.data.add_(1)
        unseen = x._version
        x.add_(1)
        return before, unseen, x._version, x.detach()._version

    compiled = thunder.jit(written, cache=cache)
    x, like = numbers(4, 4), numbers(4, 4)
    for _ in range(3):
        assert compiled(x) == written(like)
        assert x._version == like._version


def test_the_version_of_an_input_is_refused_after_a_write_to_its_alias() -> None:
    def version(x: Tensor, y: Tensor) -> int:
        x.add_(1)
        return int(y._version)

    compiled = thunder.jit(version, data_dependent="error")
    assert compiled(numbers(4), numbers(4)) == version(numbers(4), numbers(4)) == 0
    base = numbers(4)
    with pytest.raises(ThunderError, match="version of a tensor"):
        compiled(base, base[1:])
    assert compiled(base, base) == version(base, base) - 1


def test_the_gradient_of_a_write_through_a_strided_view_is_right() -> None:
    """PyTorch's derivative of the out-of-place operation is wrong here."""

    def written(x: Tensor) -> Tensor:
        y = x * 1
        part = y.as_strided((2, 4), (4, 1))
        part.mul_(3)
        return y

    compiled = thunder.jit(written)
    (x,), (other,) = leaf(), leaf()
    compiled(x).square().sum().backward()
    written(other).square().sum().backward()
    assert torch.equal(x.grad, other.grad)
