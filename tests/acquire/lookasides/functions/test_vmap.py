"""torch.vmap inside a compiled program: results, gradients and guards match eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch._higher_order_ops.associative_scan import associative_scan
from torch.nn import functional
from torch.nn.attention.flex_attention import create_block_mask

import thunder_core as thunder
from thunder_core.foundation.errors import CannotReplay, OperationFailed, ThunderError

X = torch.linspace(-1.0, 1.0, 12).view(3, 4)
W = torch.linspace(0.5, 2.0, 4, requires_grad=True)
ALLOWED = torch.rand(2, 5, generator=torch.Generator().manual_seed(0)) > 0.3


def silently(x: Tensor) -> Tensor:
    with torch.no_grad():
        doubled = x * 2
    return doubled * W + x


def mask(x: Tensor) -> Tensor:
    """Make a mask from functions of indices as transformers does."""

    def visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & ALLOWED[batch, key]

    for index in reversed(range(4)):
        visible = torch.vmap(visible, in_dims=tuple(0 if number == index else None for number in range(4)))
    with TransformGetItemToIndex():
        return visible(torch.arange(2), torch.arange(1), torch.arange(5), torch.arange(5)) * x.sum()


def blocks(x: Tensor) -> Tensor:
    mask = create_block_mask(lambda b, h, i, j: i >= j, 1, 1, 4, 4, "cpu")
    return mask.kv_num_blocks * x.sum()


def numbered(x: Tensor) -> Tensor:
    return torch.vmap(lambda y: y.add(1, alpha=W.sum().item()))(x)


PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "function": lambda x: torch.vmap(torch.sin)(x),
    "closure": lambda x: torch.vmap(lambda y: (y * W).sum() + x.sum())(x),
    "nested": lambda x: torch.vmap(lambda y: torch.vmap(lambda z: (z * W).sin().sum())(y[:, None]))(x),
    "results": lambda x: torch.vmap(lambda y, z: (y @ z, y.cumsum(0)), (0, None), (0, 1))(x, W),
    "chunks": lambda x: torch.vmap(functional.gelu, chunk_size=2)(x),
    "without gradient": lambda x: torch.vmap(silently)(x),
    "in place": lambda x: torch.vmap(lambda y: (y * 2).add_(W).relu_())(x),
    "random": lambda x: torch.vmap(lambda y: functional.dropout(y * W) + torch.rand(4), randomness="different")(x),
    "norm": lambda x: torch.vmap(lambda y: functional.layer_norm(y, (4,), W))(x),
    "tree": lambda x: torch.vmap(lambda d: {"sum": d["a"] + d["b"]}, ({"a": 0, "b": None},))({"a": x, "b": W})["sum"],
    "number": numbered,
    "mask": mask,
    "create_block_mask": blocks,
    "associative_scan": lambda x: associative_scan(torch.add, x, 0, combine_mode="generic"),
}


def used(run: Callable[[Tensor], Any]) -> list[Tensor | None]:
    """Return all results of a program and the gradients."""
    torch.manual_seed(0)
    x = X.clone().requires_grad_()
    results = run(x)
    results = [*results] if isinstance(results, tuple) else [results]
    loss = sum((result * torch.arange(1.0, result.numel() + 1).view(result.shape)).sin().sum() for result in results)
    return [*results, *torch.autograd.grad(loss, (x, W), allow_unused=True)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_and_gradients_match_eager(name: str) -> None:
    compiled = thunder.jit(PROGRAMS[name])
    eager = used(PROGRAMS[name])
    for _ in range(2):
        torch.testing.assert_close(used(compiled), eager)
    assert thunder.cache_misses(compiled) == 1


def test_a_program_may_differentiate_itself() -> None:
    def step(x: Tensor) -> Tensor | None:
        weight = W.detach().requires_grad_()
        torch.vmap(lambda y: torch.softmax(y * weight, 0).log())(x).sin().sum().backward()
        return weight.grad

    torch.testing.assert_close(thunder.jit(step)(X), step(X))


def test_reads_of_the_function_and_its_arguments_are_guarded() -> None:
    scale, trees, dims = [2.0], {"a": X, "b": X + 1}, [0]

    def program() -> Tensor:
        return torch.vmap(lambda d: d["a"].cumsum(0) * d["b"] * scale[0], in_dims=(dims[0],))(trees)

    def more() -> None:
        scale[0] = 3.0

    def other() -> None:
        trees["b"] = X * 2

    def across() -> None:
        dims[0] = 1

    compiled = thunder.jit(program)
    for change in (dict, more, other, across):
        change()
        torch.testing.assert_close(compiled(), program())


left: list[Tensor] = []
OTHER = thunder.jit(torch.sin, cache="symbolic values")
REFUSED: dict[str, tuple[Callable[[Tensor], Any], type[ThunderError], str]] = {
    "its text": (
        lambda x: torch.vmap(lambda y: y * len(f"{y}"))(x),
        OperationFailed,
        "is called inside a function transform",
    ),
    "other settings": (lambda x: torch.vmap(OTHER)(x), OperationFailed, "its own settings, is called inside"),
    "an element that leaves": (
        lambda x: torch.vmap(lambda y: (left.append(y), y)[1])(x),
        CannotReplay,
        "is used outside of the transform",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_operation_that_a_batched_trace_cannot_hold_is_refused(name: str) -> None:
    program, kind, message = REFUSED[name]
    with pytest.raises(kind, match=message):
        thunder.jit(program, data_dependent="error")(X)


def test_an_error_of_vmap_matches_eager() -> None:
    with pytest.raises(RuntimeError, match="data-dependent control flow"):
        thunder.jit(lambda x: torch.vmap(lambda y: y if y.sum() > 0 else -y)(x))(X)
    assert torch._C._functorch.peek_interpreter_stack() is None
