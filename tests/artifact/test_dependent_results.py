"""Gradients between results of a program loaded from an artifact equal those of eager."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves

import thunder_core as thunder
from thunder_core.foundation.errors import NotDifferentiable


def leaf(count: int = 4) -> Tensor:
    return (torch.arange(float(count)) + 1).requires_grad_()


def scores_and_loss(x: Tensor) -> tuple[Tensor, Tensor]:
    scores = x * 2
    return scores, scores.square().sum()


def chain(x: Tensor) -> tuple[Tensor, ...]:
    first = x * 3
    second = first.sin() * x
    return first, second, (second * first).sum()


def views(x: Tensor) -> tuple[Tensor, ...]:
    hidden = (x * 2).view(2, 2)
    return functional.cross_entropy(hidden, torch.tensor([0, 1])), hidden, hidden.view(-1)[1:]


def dropped(x: Tensor) -> tuple[Tensor, Tensor]:
    scores = functional.dropout(x * 2, 0.5)
    return scores, (scores * torch.rand_like(x)).square().sum()


def writes(x: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    count.add_(1)
    return scores_and_loss(x)


class Head(nn.Module):
    """A model that returns its loss and the logits that the loss is computed from."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """The logits and their loss."""
        logits = self.linear(x.view(1, 4))
        return {"logits": logits, "loss": functional.cross_entropy(logits, torch.tensor([2]))}


def gradients(program: Callable[..., Any]) -> list[Any]:
    """The gradients of each result with respect to all others, the values seen by hooks, and the `.grad` of leaves."""
    x, met = leaf(), {}
    torch.manual_seed(0)
    results = tree_leaves(program(x))
    found: list[Any] = []
    for result in results:
        for input_result in results:
            asked = {"allow_unused": True, "retain_graph": True}
            found += torch.autograd.grad(result.sum(), [input_result, x], **asked)
            found += torch.autograd.grad(result.sum(), input_result, materialize_grads=True, retain_graph=True)
    for number, result in enumerate(results):
        result.retain_grad()
        result.register_hook(lambda gradient, number=number: met.update({number: gradient * number}))
    sum(result.square().sum() for result in results).backward()
    return [*found, *map(met.get, range(len(results))), *(result.grad for result in results), x.grad]


def assert_same(found: list[Any], wanted: list[Any]) -> None:
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs)


def save_and_load(program: Any, folder: Path, *args: Tensor, strict: bool = False) -> Any:
    compiled = thunder.jit(program)
    tree_leaves(compiled(*args))[-1].sum().backward()
    thunder.save(compiled, folder)
    return thunder.load(folder, program, strict=strict)


@pytest.mark.parametrize("program", [scores_and_loss, chain, views, dropped])
def test_gradients_between_results_of_a_loaded_function_are_eagers(program: Any, tmp_path: Path) -> None:
    ours = save_and_load(program, tmp_path / "a", leaf())
    for _ in range(2):
        assert_same(gradients(ours), gradients(program))
    assert thunder.cache_misses(ours) == 0


def test_gradients_between_results_of_a_loaded_model_are_eagers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Head()
    assert_same(gradients(save_and_load(model, tmp_path / "a", leaf())), gradients(model))


def test_a_second_derivative_between_results_of_a_loaded_function_is_eagers(tmp_path: Path) -> None:
    def second(program: Any) -> list[Tensor]:
        first, _, total = program(leaf())
        (gradient,) = torch.autograd.grad(total, first, create_graph=True)
        return list(torch.autograd.grad(gradient.sin().sum(), first))

    assert_same(second(save_and_load(chain, tmp_path / "a", leaf())), second(chain))


def test_a_strict_artifact_refuses_gradients_between_results(tmp_path: Path) -> None:
    scores, loss = save_and_load(scores_and_loss, tmp_path / "a", leaf(), strict=True)(leaf())
    with pytest.raises(NotDifferentiable, match="with respect to other results"):
        torch.autograd.grad(loss, scores, allow_unused=True)


def test_gradients_between_results_of_an_artifact_that_writes_to_inputs_are_eagers(tmp_path: Path) -> None:
    def between(program: Any) -> list[Tensor]:
        count = torch.zeros(1)
        scores, loss = program(leaf(), count)
        return [*torch.autograd.grad(loss, scores), count]

    assert_same(between(save_and_load(writes, tmp_path / "a", leaf(), torch.zeros(1))), between(writes))
