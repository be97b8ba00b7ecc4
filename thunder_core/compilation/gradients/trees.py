"""Checks of arguments and results, which are pytrees: whether their tensors can be differentiated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_map

from thunder_core.foundation.descriptions import object_of_class
from thunder_core.foundation.errors import NotDifferentiable, SourceLine, WrongInputs
from thunder_core.tracing.library.transformed_calls import is_differentiable

Argnums = int | tuple[int, ...]


def indices_of(argnums: Argnums, count: int, name: str) -> tuple[int, ...]:
    """Return the positions of arguments to differentiate, counted from 0; raise `WrongInputs` for invalid positions."""
    numbers = argnums if isinstance(argnums, tuple) else (argnums,)
    if not numbers or not all(type(index) is int for index in numbers):
        raise WrongInputs(f"{name}: argnums={argnums!r} is not a number or a tuple of numbers", fix="write argnums=0")
    outside = [index for index in numbers if not -count <= index < count]
    if outside:
        raise WrongInputs(
            f"{name}: argnums={argnums!r} names argument {outside[0]}, but the call has {count} positional arguments",
            fix="count from 0, and pass the arguments to differentiate by position",
        )
    indices = tuple(index % count for index in numbers)
    if len(set(indices)) < len(indices):
        raise WrongInputs(f"{name}: argnums={argnums!r} names an argument twice", fix="name each argument once")
    return indices


def differentiable_leaves(tree: object, name: str) -> tuple[list[torch.Tensor], TreeSpec]:
    """Return the tensors to differentiate, and their tree structure; raise `WrongInputs` for other leaves."""
    leaves, structure = tree_flatten(tree)
    if not leaves:
        raise WrongInputs(f"{name}: there is no tensor to differentiate", fix="pass a tensor, or a tree of tensors")
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            raise WrongInputs(
                f"{name} needs tensors to differentiate, but got {object_of_class(type(leaf))}",
                fix="convert the argument to a tensor, or leave it out of argnums",
            )
        if not is_differentiable(leaf):
            raise WrongInputs(
                f"{name} needs floating-point or complex tensors to differentiate, but got a tensor of {leaf.dtype}",
                fix="convert the argument with .to(torch.float32), or leave it out of argnums",
            )
    return leaves, structure


def with_arguments(tree: object, starts: Sequence[torch.Tensor], arguments: Sequence[object]) -> Any:
    """Return a result with the arguments in place of `starts`, the tensors that stand for them in the call."""
    by_start = dict(zip(map(id, starts), arguments, strict=True))
    return tree_map(lambda leaf: by_start.get(id(leaf), leaf), tree)


def split_aux(output: object, has_aux: bool, name: str, where: SourceLine | None) -> tuple[Any, Any]:
    """Return the result and the auxiliary result of a function; raise `NotDifferentiable` if they are not a pair."""
    if not has_aux:
        return output, None
    if not (isinstance(output, tuple) and len(output) == 2):
        raise NotDifferentiable(
            f"{name}: with has_aux=True the function returns a pair (output, aux), not {object_of_class(type(output))}",
            fix="return output, aux",
            where=where,
        )
    return output


def require_scalar(output: object, name: str, where: SourceLine | None) -> torch.Tensor:
    """Return the result if it is one real number; raise `NotDifferentiable` otherwise."""
    if not isinstance(output, torch.Tensor):
        what = object_of_class(type(output))
    elif output.dim() != 0:
        what = f"a tensor of shape {list(output.shape)}"
    elif not output.is_floating_point():
        what = f"a tensor of {output.dtype}"
    else:
        return output
    raise NotDifferentiable(
        f"{name}: the function has to return a real tensor without dimensions, but returned {what}",
        fix="reduce the result (.sum(), .mean()), or use thunder_core.vjp",
        where=where,
    )


def require_tensors(leaves: Sequence[Any], name: str, where: SourceLine | None) -> list[torch.Tensor]:
    """Return the results if all are tensors; raise `NotDifferentiable` otherwise."""
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            raise NotDifferentiable(
                f"{name}: the function has to return tensors, but returned {object_of_class(type(leaf))}",
                fix="return other values as aux, with has_aux=True",
                where=where,
            )
    if not leaves:
        raise NotDifferentiable(f"{name}: the function returns no tensor", fix="return a tensor", where=where)
    return list(leaves)


def require_differentiable(leaves: Sequence[Any], name: str, where: SourceLine | None) -> list[torch.Tensor]:
    """Return the results if all are real or complex tensors; raise `NotDifferentiable` otherwise."""
    tensors = require_tensors(leaves, name, where)
    for tensor in tensors:
        if not is_differentiable(tensor):
            raise NotDifferentiable(
                f"{name}: the function has to return floating-point or complex tensors, but returned a tensor of "
                f"{tensor.dtype}",
                fix="return other tensors as aux, with has_aux=True",
                where=where,
            )
    return tensors


def require_same(actual: object, expected: object, what: tuple[str, str], name: str) -> list[torch.Tensor]:
    """Return the tensors of `actual`; raise `WrongInputs` if its structure, shapes or dtypes differ from `expected`."""
    leaves, structure = tree_flatten(actual)
    wanted_leaves, wanted_structure = tree_flatten(expected)
    if structure != wanted_structure:
        raise WrongInputs(
            f"{name}: {what[0]} have the structure {structure}, but {what[1]} have {wanted_structure}",
            fix=f"pass one tensor for each of {what[1]}",
        )
    for leaf, like in zip(leaves, wanted_leaves, strict=True):
        if not isinstance(leaf, torch.Tensor) or leaf.shape != like.shape or leaf.dtype != like.dtype:
            received = f"{list(leaf.shape)} and {leaf.dtype}" if isinstance(leaf, torch.Tensor) else repr(leaf)
            raise WrongInputs(
                f"{name}: one of {what[0]} is {received}, but that of {what[1]} is {list(like.shape)} and {like.dtype}",
                fix="pass tensors of the same shape and dtype",
            )
    return leaves
