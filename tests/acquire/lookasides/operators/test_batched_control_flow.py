"""`torch.cond`, `while_loop`, `scan` and `map` within `torch.vmap`, compared with a loop over the batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, vmap
from torch._higher_order_ops import scan, while_loop
from torch._higher_order_ops.map import map as map_slices
from torch.func import grad

import thunder_core as thunder
from thunder_core.foundation.errors import OperationFailed

# Eager PyTorch compiles the functions that are passed to these operators.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")

X = torch.linspace(-2.0, 1.5, 24).view(4, 3, 2)
W = torch.tensor([[1.0, -2.0], [0.5, 3.0], [-1.0, 0.25]], requires_grad=True)
ZERO = torch.zeros((), dtype=torch.int64)


def chosen(x: Tensor) -> Tensor:
    result: Tensor = torch.cond(x.sum() > 0, lambda x: x * W, lambda x: x.cos(), (x,))
    return result


def chosen_for_all(x: Tensor) -> Tensor:
    y = x * 2
    result: Tensor = torch.cond(W.sum() > 0, lambda x: x * y, lambda x: torch.zeros(3, 2), (x,))
    return result


def chosen_trees(x: Tensor) -> Tensor:
    one = lambda d: {"a": d["x"] * 1, "b": (d["x"].sum(), 2)}  # noqa: E731
    other = lambda d: {"a": torch.ones(3, 2), "b": (d["x"].prod(), 2)}  # noqa: E731
    tree = torch.cond(x.sum() > 0, one, other, ({"x": x},))
    return tree["a"] + tree["b"][0] * tree["b"][1]


def chosen_again(x: Tensor) -> Tensor:
    inner = lambda x: torch.cond(x[0, 0] > 0.5, lambda x: x * 2, lambda x: x * 3, (x,)) + W  # noqa: E731
    result: Tensor = torch.cond(x.sum() > 0, inner, lambda x: x - 1, (x,))
    return result


def by_one_element(x: Tensor) -> Tensor:
    result: Tensor = torch.cond(x[:1, 0] > 0, torch.sin, torch.cos, (x,))
    return result


def summed(x: Tensor) -> tuple[Tensor, ...]:
    result: tuple[Tensor, ...] = scan(lambda c, y: (c + y * W.sum(0), c * y), torch.zeros(2), x)
    return result


def summed_backwards(x: Tensor) -> tuple[Tensor, ...]:
    result: tuple[Tensor, ...] = scan(lambda c, y: (c * 0.5 + y, c - y.sum()), x[0] * 1, x, reverse=True)
    return result


def mapped(x: Tensor) -> Tensor:
    shift = x.sum(0)
    result: Tensor = map_slices(lambda y, z: y.sin() * z + shift, x, W.sum(0))
    return result


def branches_of_slices(x: Tensor) -> Tensor:
    result: Tensor = map_slices(lambda y: torch.cond(y.sum() > 0, torch.sin, torch.cos, (y,)), x)
    return result


def looped(x: Tensor) -> tuple[Tensor, ...]:
    limit = x.abs().sum() * 3
    result: tuple[Tensor, ...] = while_loop(
        lambda turn, x: (turn < 5) & (x.abs().sum() < limit + 9), lambda turn, x: (turn + 1, x * 1.5), (ZERO * 1, x)
    )
    return result


def looped_for_all(x: Tensor) -> Tensor:
    result: Tensor = while_loop(lambda n, x: n < 3, lambda n, x: (n + 1, x + W.detach()), (ZERO * 1, x))[1]
    return result


PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    program.__name__: program
    for program in (
        *(chosen, chosen_for_all, chosen_trees, chosen_again, by_one_element),
        *(summed, summed_backwards, mapped, branches_of_slices, looped, looped_for_all),
    )
}


def flat(results: Any) -> list[Tensor]:
    return [results] if isinstance(results, Tensor) else list(results)


def results_of_elements(program: Callable[[Tensor], Any], x: Tensor, dimension: int = 0) -> list[Tensor]:
    """Return the results of a program for each element of a batch, in eager PyTorch, without `vmap`."""
    rows = [flat(program(row.contiguous())) for row in x.unbind(dimension)]
    return [torch.stack(column) for column in zip(*rows, strict=True)]


@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_program_serves_every_element(name: str, cache: Any) -> None:
    program = PROGRAMS[name]
    compiled = thunder.jit(lambda x: vmap(program)(x), cache=cache)
    for x in (X, -X, X / 8):
        torch.testing.assert_close(flat(compiled(x)), results_of_elements(program, x))
    assert thunder.cache_misses(compiled) == 1


@pytest.mark.parametrize("name", PROGRAMS)
def test_nested_vmap_matches_a_nested_loop(name: str) -> None:
    program = PROGRAMS[name]
    x = torch.stack([X, -X, X.flip(0) * 1.5], 2)  # x has a batch of 3 along its third dimension
    compiled = thunder.jit(lambda x: vmap(vmap(program), in_dims=2)(x))
    expected = [results_of_elements(program, rows) for rows in x.unbind(2)]
    torch.testing.assert_close(flat(compiled(x)), [torch.stack(column) for column in zip(*expected, strict=True)])


@pytest.mark.parametrize("name", sorted(PROGRAMS.keys() - {"chosen_trees"}))  # eager does not differentiate numbers
def test_gradients_of_batches_match_gradients_of_elements(name: str) -> None:
    program = PROGRAMS[name]
    compiled = thunder.jit(lambda x: vmap(program)(x))
    gradients = []
    for run in (compiled, lambda x: results_of_elements(program, x)):
        x = X.clone().requires_grad_()
        total = torch.stack([(result * 1.5).sum() for result in flat(run(x)) if result.is_floating_point()]).sum()
        gradients.append(torch.autograd.grad(total, [x, W], allow_unused=True, materialize_grads=True))
    torch.testing.assert_close(*gradients)


def test_batches_and_lengths_are_symbols() -> None:
    compiled = thunder.jit(lambda x: vmap(summed)(x), cache="symbolic values")
    for batch, length in ((2, 3), (5, 7), (3, 2)):
        x = torch.randn(batch, length, 2, generator=torch.Generator().manual_seed(batch))
        torch.testing.assert_close(flat(compiled(x)), results_of_elements(summed, x))
    assert thunder.cache_misses(compiled) == 1


def test_unbatched_predicate_stays_a_branch_and_batched_predicate_selects() -> None:
    whole, each = (thunder.jit(lambda x, one=one: vmap(one)(x)) for one in (chosen_for_all, chosen))
    texts = [(compiled(X), str(thunder.last_traces(compiled)[0]))[1] for compiled in (whole, each)]
    assert [("control_flow.cond(" in text, "aten.where" in text) for text in texts] == [(True, False), (False, True)]


def test_an_artifact_holds_the_functions(tmp_path: Path) -> None:
    compiled = thunder.jit(batched_sums)
    compiled(X)
    loaded = thunder.load(thunder.save(compiled, tmp_path / "kept"), batched_sums, strict=True)
    torch.testing.assert_close(flat(loaded(-X)), results_of_elements(summed, -X))


def batched_sums(x: Tensor) -> Any:
    return vmap(summed)(x)


REFUSED: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "numbers": (
        lambda x: torch.cond(x.sum() > 0, lambda x: (x + 1, 1), lambda x: (-x, 2), (x,))[0],
        "returns numbers that differ",
    ),
    "effect": (lambda x: torch.cond(x.sum() > 0, lambda x: (LOG.append(1), x + 1)[1], torch.sin, (x,)), "changes an"),
    "write": (lambda x: torch.cond(x.sum() > 0, lambda x: x.add_(1) * 2, torch.sin, (x,)), "writes to a tensor"),
    "derivative": (grad(lambda x: chosen(x).sum()), "inside a derivative of torch.func"),
}
LOG: list[int] = []


@pytest.mark.parametrize("name", REFUSED)
def test_operation_without_meaning_for_a_batch_is_refused_at_its_line(name: str) -> None:
    program, message = REFUSED[name]
    with pytest.raises(OperationFailed, match=message) as caught:
        thunder.jit(lambda x: vmap(program)(x * 1), data_dependent="error")(X)
    assert caught.value.where is not None
    assert caught.value.where.filename == __file__
    assert LOG == []


ERRORS: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "structure": (lambda x: torch.cond(x.sum() > 0, lambda x: (x + 1,), torch.sin, (x,)), "Unmatched output spec"),
    "carried": (lambda x: while_loop(lambda x: x.sum() < 3, lambda x: (x.double(),), (x,)), "to have same metadata"),
    "carry": (lambda x: scan(lambda c, y: (torch.cat([c, c]), y * 1), x[0], x), "to have same metadata"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_other_mistakes_raise_pytorchs_messages(name: str) -> None:
    program, message = ERRORS[name]
    with pytest.raises(Exception, match=message):
        thunder.jit(lambda x: vmap(program)(x), data_dependent="error")(X)
