"""Effects of a compiled function that another calls happen once, in their order, and its reads are guarded."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import thunder_core as thunder
from tests.compiler.inner_functions import X, sines


def test_reads_of_an_inner_function_are_guarded() -> None:
    state = {"pair": False}
    inner = sines(lambda x: (x, x * 2) if state["pair"] else x)
    outer = thunder.jit(lambda x: inner(x + 0))
    assert torch.equal(outer(X), X)
    state["pair"] = True
    assert len(outer(X)) == 2
    assert thunder.recompile_reasons(outer)[0].endswith("was False, is True")


MEMBERS = {1}
HOLDER = nn.Module()


def asks_for_members(x: Tensor) -> Tensor:
    return x * 2 if 1 in MEMBERS and 2 in MEMBERS else x


def asks_for_attributes(x: Tensor) -> Tensor:
    return x * 2 if hasattr(HOLDER, "first") or hasattr(HOLDER, "second") else x


def hold_member() -> None:
    MEMBERS.add(2)


def hold_attribute() -> None:
    HOLDER.second = 1  # type: ignore[assignment]


@pytest.mark.parametrize(("asks", "change"), [(asks_for_members, hold_member), (asks_for_attributes, hold_attribute)])
def test_every_read_of_one_object_is_guarded(asks: Callable[..., Tensor], change: Callable[[], None]) -> None:
    inner = sines(asks)
    compiled = thunder.jit(lambda x: inner(x) + 1)
    x = torch.ones(2)
    assert torch.equal(compiled(x), x + 1)
    change()
    assert torch.equal(compiled(x), asks(x) + 1) and torch.equal(asks(x), x * 2)


CONTAINERS: dict[str, tuple[Callable[..., Tensor], Any, Any]] = {
    "a key of a dict": (lambda x, given: x * 2 if "b" in given else x, {"a": 1}, {"a": 1, "b": 2}),
    "a dict that is empty": (lambda x, given: x * 2 if given else x, {}, {"a": 1}),
    "the length of a list": (lambda x, given: x * len(given), [1], [1, 2]),
    "the length of a list in a dict": (lambda x, given: x * len(given["a"]), {"a": [1]}, {"a": [1, 2]}),
    "the length of a list in a tuple": (lambda x, given: x * len(given[0]), ([1],), ([1, 1],)),
    "an item of a list in a list": (lambda x, given: x * given[0][0], [[1]], [[2]]),
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_container_arguments_of_an_inner_function_are_guarded(name: str) -> None:
    asks, first, second = CONTAINERS[name]
    inner = sines(asks)
    compiled = thunder.jit(lambda x, given: inner(x, given) + 1)
    for given in (first, second, first):
        assert torch.equal(compiled(X, given), asks(X, given) + 1)
    assert not torch.equal(asks(X, first), asks(X, second))


def test_writes_of_an_inner_function_happen_once_per_call() -> None:
    log: list[int] = []

    def logged(x: Tensor) -> Tensor:
        log.append(x.shape[0])
        return torch.sin(x)

    inner = sines(logged)
    outer = thunder.jit(lambda x: inner(x) + 1)
    for count in (1, 2, 3):
        outer(X)
        assert log == [2] * count


def test_call_with_an_unused_result_is_made(capsys: pytest.CaptureFixture[str]) -> None:
    inner = sines(lambda x: print("called", x.sum()))

    def program(x: Tensor) -> Tensor:
        inner(x)
        return x + 1

    compiled = thunder.jit(program)
    compiled(X)
    compiled(X)
    assert capsys.readouterr().out == "called tensor(3.)\n" * 2


def test_buffers_parameters_and_gradients_of_an_inner_module_match_eager() -> None:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    head = nn.Linear(2, 2)
    inner = sines(body)
    outer = thunder.jit(nn.Sequential(head, inner, nn.Tanh()))
    twin = copy.deepcopy(nn.Sequential(head, body, nn.Tanh()))
    x = torch.randn(4, 2)
    for _ in range(2):
        found, wanted = outer(x), twin(x)
        torch.testing.assert_close(found, wanted)
        found.pow(2).sum().backward()
        wanted.pow(2).sum().backward()
        assert "has its own backward" in thunder.last_backward_reason(outer)
    for ours, theirs in zip((*head.parameters(), *body.parameters()), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    torch.testing.assert_close(body[1].running_mean, twin[1][1].running_mean)


def test_random_numbers_keep_their_order() -> None:
    inner = sines(lambda x: torch.nn.functional.dropout(x, 0.5))

    def program(x: Tensor) -> tuple[Tensor, ...]:
        return inner(x), torch.rand(3), inner(x)

    compiled, found = thunder.jit(program), []
    for function in (program, compiled, compiled):
        torch.manual_seed(0)
        found.append(function(torch.ones(16)))
    for result in found[1:]:
        torch.testing.assert_close(result, found[0], rtol=0, atol=0)


def test_writes_before_and_after_keep_their_order() -> None:
    weight = torch.ones(2)
    inner = sines(lambda x: x * weight)

    def program(x: Tensor) -> Tensor:
        weight.mul_(3)
        y = inner(x)
        weight.mul_(5)
        return y + inner(x)

    compiled = thunder.jit(program)
    for times in (15, 225):
        assert torch.equal(compiled(X), X * (times / 5 + times))
        assert torch.equal(weight, torch.full((2,), float(times)))


def test_error_of_an_inner_function_can_be_caught() -> None:
    table = {"key": 1}
    inner = sines(lambda x: x * table["key"])

    def careful(x: Tensor) -> Tensor:
        try:
            return inner(x)
        except KeyError:
            return -x

    compiled = thunder.jit(careful)
    assert torch.equal(compiled(X), X)
    del table["key"]
    assert torch.equal(compiled(X), -X)
    table["key"] = 2
    assert torch.equal(compiled(X), X * 2)
