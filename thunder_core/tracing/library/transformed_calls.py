"""Transformed versions of functions: they are compiled if a compiled function is called inside a function transform.

Each transformed function takes the nested arguments of a call, so that arguments other than tensors are guarded as
usual.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.func import functional_call, jvp, vjp
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

Function = Callable[..., Any]
Flags = tuple[bool, ...]


def batch_function(function: Function) -> Function:
    """Return the function vectorized over batches; `in_dims` has the structure of the arguments.

    Results that are not tensors, such as numbers, are the same for the whole batch.
    """

    def batched_call(args: tuple[Any, ...], kwargs: dict[str, Any], in_dims: Any, randomness: str) -> Any:
        results: list[Any] = []

        def element_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            results.extend(tree_flatten(function(*args, **kwargs)))
            return [leaf for leaf in results[0] if isinstance(leaf, torch.Tensor)]

        tensors = iter(torch.vmap(element_call, in_dims, randomness=randomness)(args, kwargs))
        leaves = [next(tensors) if isinstance(leaf, torch.Tensor) else leaf for leaf in results[0]]
        return tree_unflatten(leaves, results[1])

    return batched_call


def function_of_state(module: torch.nn.Module) -> Function:
    """Return the module as a function of its parameters and buffers."""

    def stateful_call(state: dict[str, torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return functional_call(module, state, args, kwargs)

    return stateful_call


def pullback_of(function: Function) -> Function:
    """Return the pullback: from cotangents of the differentiable results to cotangents of the needed arguments.

    A cotangent that is None stands for zeros.
    """

    def pullback_call(
        args: tuple[Any, ...], kwargs: dict[str, Any], gradients: tuple[Any, ...], is_needed: Flags
    ) -> Any:
        differentiable_call, primals = restrict_to_needed(function, args, kwargs, is_needed)
        results, pull = vjp(differentiable_call, *primals)[:2]
        pairs = zip(results, gradients, strict=True)
        return pull(tuple([torch.zeros_like(result) if given is None else given for result, given in pairs]))

    return pullback_call


def pushforward_of(function: Function) -> Function:
    """Return the function from tangents of the needed arguments to tangents of the differentiable results."""

    def pushforward_call(args: tuple[Any, ...], kwargs: dict[str, Any], tangents: object, is_needed: Flags) -> Any:
        differentiable_call, primals = restrict_to_needed(function, args, kwargs, is_needed)
        return jvp(differentiable_call, primals, tangents)[1]

    return pushforward_call


def restrict_to_needed(
    function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], is_needed: Flags
) -> tuple[Function, tuple[torch.Tensor, ...]]:
    """Return a function of the needed tensors among the arguments, and these tensors.

    `is_needed` has a flag for each tensor. The function has the other arguments as constants, and returns the
    differentiable tensors of the result.
    """
    leaves, structure = tree_flatten((args, kwargs))
    flags = iter(is_needed)
    numbers = [number for number, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and next(flags)]

    def differentiable_call(*primals: torch.Tensor) -> Any:
        arguments = list(leaves)
        for number, primal in zip(numbers, primals, strict=True):
            arguments[number] = primal
        args, kwargs = tree_unflatten(arguments, structure)
        return tuple([leaf for leaf in tree_leaves(function(*args, **kwargs)) if is_differentiable(leaf)])

    return differentiable_call, tuple([leaves[number] for number in numbers])


def is_differentiable(leaf: object) -> bool:
    """Whether a leaf of arguments or results is a tensor that has derivatives."""
    return isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex())


# The functions of this module that are traced together with the function that they call.
TRACED = (
    *("batched_call", "element_call", "stateful_call", "pullback_call", "pushforward_call"),
    *("restrict_to_needed", "differentiable_call", "is_differentiable"),
)
