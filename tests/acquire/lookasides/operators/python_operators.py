"""Python versions of PyTorch's operators that take functions; eager PyTorch would compile them, which is slow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._higher_order_ops import associative_scan, scan, while_loop
from torch._higher_order_ops.map import map as map_slices
from torch.func import jvp, linearize, vmap
from torch.nn.attention.flex_attention import flex_attention
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Operators:
    """The operators that a program may call."""

    cond: Callable[..., Any]
    while_loop: Callable[..., Any]
    scan: Callable[..., Any]
    map: Callable[..., Any]
    associative_scan: Callable[..., Any]
    flex_attention: Callable[..., Any]
    checkpoint: Callable[..., Any]
    region: Callable[..., Any]
    vmap: Callable[..., Any]
    linearize: Callable[..., Any]


def branch(
    predicate: Any, true_branch: Callable[..., Any], false_branch: Callable[..., Any], operands: Any = ()
) -> Any:
    return (true_branch if predicate else false_branch)(*operands)


def loop(condition: Callable[..., Any], body: Callable[..., Any], carried: Any) -> Any:
    while condition(*carried):
        carried = body(*carried)
    return carried


def scanned(combine: Callable[..., Any], carry: Any, slices: Any, *, dim: int = 0, reverse: bool = False) -> Any:
    places = list(range(tree_leaves(slices)[0].shape[dim]))
    rows = []
    for place in reversed(places) if reverse else places:
        carry, row = combine(carry, tree_map(lambda tensor, place=place: tensor.select(dim, place), slices))
        rows.append(row)
    return carry, stacked(reversed(rows) if reverse else rows, dim)


def mapped(function: Callable[..., Any], slices: Any, *operands: Any) -> Any:
    places = range(tree_leaves(slices)[0].shape[0])
    return stacked(function(tree_map(lambda tensor, place=place: tensor[place], slices), *operands) for place in places)


def stacked(rows: Any, dim: int = 0) -> Any:
    return tree_map(lambda *tensors: None if tensors[0] is None else torch.stack(tensors, dim), *rows)


def associatively_scanned(
    combine: Callable[..., Any], slices: Any, dim: int, *, reverse: bool = False, combine_mode: str = ""
) -> Any:
    places = list(range(tree_leaves(slices)[0].shape[dim]))
    rows: list[Any] = []
    for place in reversed(places) if reverse else places:
        row = tree_map(lambda tensor, place=place: tensor.select(dim, place), slices)
        rows.append(combine(rows[-1], row) if rows else row)
    return stacked(reversed(rows) if reverse else rows, dim)


def attended(query: Tensor, key: Tensor, value: Tensor, score: Callable[..., Tensor]) -> Tensor:
    scores = query @ key.mT * query.shape[-1] ** -0.5
    places = torch.meshgrid(*map(torch.arange, scores.shape), indexing="ij")
    return score(scores, *places).softmax(-1) @ value


def linearized(function: Callable[..., Any], *primals: Tensor) -> Any:
    """Return the value and the derivative, whose own gradients reach the primals."""
    return function(*primals), lambda *tangents: jvp(function, primals, tangents)[1]


PYTORCHS = Operators(
    torch.cond,
    while_loop,
    scan,
    map_slices,
    associative_scan,
    flex_attention,
    lambda function, *args: checkpoint(function, *args, use_reentrant=False),
    torch.compiler.nested_compile_region,
    vmap,
    linearize,
)
IN_PYTHON = Operators(
    branch,
    loop,
    scanned,
    mapped,
    associatively_scanned,
    attended,
    lambda function, *args: function(*args),
    lambda function: function,
    lambda function: lambda slices: mapped(function, slices),
    linearized,
)
