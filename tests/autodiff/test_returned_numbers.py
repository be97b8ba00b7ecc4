"""Numbers out of tensors among the results of a program that has a backward of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import thunder_core as thunder

weight = torch.nn.Parameter(torch.arange(12.0).reshape(3, 4) / 12)


def loss_and_accuracy(x: Tensor, labels: Tensor) -> Any:
    logits = functional.linear(x, weight)
    loss = functional.cross_entropy(logits, labels)
    return loss, loss.item(), (logits.argmax(-1) == labels).float().mean().item() * 100


def numbers_and_views(x: Tensor, labels: Tensor) -> Any:
    hidden = functional.linear(x, weight)
    positive = int((hidden > 0.5).sum())
    return {"hidden": hidden.t(), "positive": positive, "log": [hidden.mean().item(), positive * x.shape[0]]}


def numbers_of_inputs(x: Tensor, labels: Tensor) -> Any:
    return functional.linear(x, weight), labels[0].item(), labels.max().item() + 1.5, bool(labels[0].item())


def number_before_a_view_of_an_input(x: Tensor, labels: Tensor) -> Any:
    return x.detach().max().item(), x.view(-1), functional.linear(x, weight).sum()


PROGRAMS = (loss_and_accuracy, numbers_and_views, numbers_of_inputs, number_before_a_view_of_an_input)


def parts(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return parts(list(value.values()))
    return [part for item in value for part in parts(item)] if isinstance(value, tuple | list) else [value]


def train(run: Callable[..., Any]) -> list[Any]:
    found = []
    for rows in (2, 3, 5):
        x = (torch.arange(rows * 4.0).reshape(rows, 4) / 10).requires_grad_()
        results = parts(run(x, torch.arange(rows) % 3))
        losses = [result.square().sum() for result in results if isinstance(result, Tensor)]
        gradients = torch.autograd.grad(sum(losses), (x, weight), create_graph=True)
        second = torch.autograd.grad(sum(gradient.square().sum() for gradient in gradients), (x, weight))
        found.append([results, [type(result) for result in results], gradients, second])
    return found


def compare(found: list[Any], wanted: list[Any]) -> None:
    for ours, eagers in zip(found, wanted, strict=True):
        assert ours.pop(1) == eagers.pop(1)
        torch.testing.assert_close(ours, eagers)


@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_that_returns_numbers_has_its_own_backward(program: Callable[..., Any], cache: str) -> None:
    compiled = thunder.jit(program, cache=cache, executors=("torch",))
    compare(train(compiled), train(program))
    assert thunder.last_backward_reason(compiled) == ""


def test_numbers_are_returned_by_fused_regions() -> None:
    compiled = thunder.jit(loss_and_accuracy)
    compare(train(compiled), train(loss_and_accuracy))
    assert thunder.last_backward_reason(compiled) == ""


def test_a_stored_program_returns_numbers(tmp_path: Path) -> None:
    compiled = thunder.jit(numbers_and_views, executors=("torch",))
    train(compiled)
    loaded = thunder.load(thunder.save(compiled, tmp_path / "kept"), numbers_and_views, strict=True)
    compare(train(loaded), train(numbers_and_views))
