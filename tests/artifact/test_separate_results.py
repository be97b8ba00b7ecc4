"""Results of a loaded program have backward passes of their own, as in eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import thunder_core as thunder

Run = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def separate(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return two results that share no operation."""
    return x.sin() * 2, y.exp().tanh()


def shared(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return two results that share an operation."""
    hidden = (x * y).sin()
    return hidden * 2, hidden.exp()


def counted(x: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """Return a result that does not depend on the second argument."""
    return x.sin() * 2, count + 1


def leaf(count: int = 3) -> Tensor:
    return (torch.arange(float(count)) + 1).requires_grad_()


def loaded(program: Run, folder: Path, second: Tensor) -> Any:
    compiled = thunder.jit(program)
    compiled(leaf(), second)
    return thunder.load(thunder.save(compiled, folder / "a"), program)


def outcome(use: Callable[[Run], object], run: Run) -> object:
    """Return the result of a use of a program, or the error that it raises."""
    try:
        return use(run)
    except RuntimeError as error:
        return str(error)[:60]


def passes(order: tuple[int, ...], *, retain_graph: bool = False, write: bool = False) -> Callable[[Run], object]:
    """Return a function that runs a backward pass for each of these results, and returns the gradients."""

    def use(run: Run) -> object:
        x, y = leaf(), leaf()
        results = run(x, y)
        for index in order:
            results[index].sum().backward(retain_graph=retain_graph)
            if write:
                with torch.no_grad():
                    (x, y)[index].add_(1)
        return x.grad, y.grad

    return use


@pytest.mark.parametrize("program", [separate, shared])
@pytest.mark.parametrize("order", [(0, 1), (1, 0), (0, 0), (0, 1, 0)])
@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize("retain_graph", [False, True])
def test_passes_for_single_results_match_eager(
    program: Run, order: tuple[int, ...], write: bool, retain_graph: bool, tmp_path: Path
) -> None:
    use = passes(order, retain_graph=retain_graph, write=write)
    found, expected = outcome(use, loaded(program, tmp_path, leaf())), outcome(use, program)
    assert type(found) is type(expected)
    if isinstance(expected, str):
        assert found == expected
    else:
        torch.testing.assert_close(found, expected)


def test_a_write_to_an_input_that_no_derived_result_depends_on_is_accepted(tmp_path: Path) -> None:
    outcomes = []
    for run in (counted, loaded(counted, tmp_path, torch.ones(3))):
        x, count = leaf(), torch.ones(3)
        result, _ = run(x, count)
        count.add_(1)
        (gradient,) = torch.autograd.grad(result.sum(), x, create_graph=True)
        outcomes.append((gradient, *torch.autograd.grad(gradient.sum(), x)))
    torch.testing.assert_close(*outcomes)
