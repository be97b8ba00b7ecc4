"""The effects of a call as plain data: its result or error, its changed arguments, and the shared memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Make = Callable[[], tuple[Any, ...]]


def parts(value: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf of a value with its path. A module has its parameters, gradients and buffers."""
    if isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from parts(item, f"{where}[{index}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from parts(item, f"{where}[{key!r}]")
    elif isinstance(value, torch.nn.Module):
        for name, tensor in (*value.named_parameters(), *value.named_buffers()):
            yield f"{where}.{name}", tensor
    elif isinstance(value, torch.Generator):
        yield f"{where}.state", value.get_state()
    elif isinstance(value, torch.optim.Optimizer):
        for index, state in enumerate(value.state.values()):
            yield from parts(state, f"{where}.state[{index}]")
    else:
        yield where, value


@dataclass
class Outcome:
    """The description of a call: `values` are compared exactly or approximately, `facts` always exactly."""

    values: dict[str, Tensor]
    facts: dict[str, Any]

    def differences(self, other: Outcome, exact: bool = True) -> list[str]:
        """The differences from another outcome in words. Gradients may be summed in any order."""
        found = [
            f"{key}: {self.facts.get(key)} | {other.facts.get(key)}"
            for key in {**self.facts, **other.facts}
            if self.facts.get(key) != other.facts.get(key)
        ]
        for key in self.values.keys() & other.values.keys():
            mine, theirs = self.values[key], other.values[key]
            if mine.shape == theirs.shape and not close(mine, theirs, exact and not key.endswith(".grad")):
                found.append(f"{key}: {mine.tolist()!s:.90} | {theirs.tolist()!s:.90}")
        return found


def close(first: Tensor, second: Tensor, exact: bool) -> bool:
    """Whether two tensors are equal bit by bit (NaN equals NaN), or approximately."""
    if not exact and first.is_floating_point():
        return torch.allclose(first, second, rtol=1e-4, atol=1e-5, equal_nan=True)
    return first.dtype == second.dtype and torch.equal(first.nan_to_num(), second.nan_to_num())


def is_recorded(tensor: Tensor) -> bool | str:
    """Whether autograd recorded a tensor's operation. Autograd may refuse to answer."""
    try:
        return tensor.grad_fn is not None
    except RuntimeError as error:
        return str(error)


def outcome(function: Callable[..., Any], args: tuple[Any, ...], backward: bool = True) -> Outcome:
    """Call the function, differentiate its results if possible, and describe the effects."""
    torch.default_generator.manual_seed(1)  # `torch.manual_seed` formats the stack, in case of a later GPU
    versions = [(where, leaf._version) for where, leaf in parts(args, "args") if isinstance(leaf, Tensor)]
    leaves = [leaf for _, leaf in parts(args) if isinstance(leaf, Tensor)]
    held = dict(parts(args, "args"))
    result: Any = None
    facts: dict[str, Any] = {}
    try:
        result = function(*args)
        differentiable = [leaf for _, leaf in parts(result) if isinstance(leaf, Tensor) and leaf.grad_fn is not None]
        if backward and differentiable:
            sum((leaf * leaf.detach().abs().add(1)).abs().sum() for leaf in differentiable).backward()
    except Exception as error:
        facts["error"] = (type(error).__name__, str(error))
    facts |= {
        f"{where} version": leaf._version - before for (where, before), leaf in zip(versions, leaves, strict=True)
    }
    facts |= {
        f"{where} is": [other for other, leaf in parts(args, "args") if leaf is value] for where, value in held.items()
    }
    values = {"generator": torch.get_rng_state()}
    found = list(parts(result, "result")) + list(held.items())
    found += [(f"{where}.grad", leaf.grad) for where, leaf in held.items() if isinstance(leaf, Tensor) and leaf.is_leaf]
    _describe(found, values, facts)
    return Outcome(values, facts)


def _describe(found: list[tuple[str, Any]], values: dict[str, Tensor], facts: dict[str, Any]) -> None:
    storages: dict[int, str] = {}
    objects: dict[int, str] = {}
    for where, leaf in found:
        if not isinstance(leaf, Tensor):
            facts[where] = repr(leaf) if not isinstance(leaf, torch.Generator) else "generator"
            continue
        memory = leaf.untyped_storage().data_ptr() if leaf.untyped_storage().nbytes() else id(leaf)
        facts[where] = {
            "object": objects.setdefault(id(leaf), where),
            "memory": storages.setdefault(memory, where),
            "metadata": (tuple(leaf.shape), leaf.stride(), leaf.storage_offset(), leaf.dtype),
            "autograd": (leaf.requires_grad, leaf._is_view(), leaf.is_inference()),
            "recorded": is_recorded(leaf),
        }
        values[where] = leaf.detach().clone()
