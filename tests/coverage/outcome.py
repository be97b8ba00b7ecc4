"""The outcome of a call, in eager PyTorch or compiled, and the difference of two outcomes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from thunder_core.foundation.errors import ThunderError

SEED = 1234
LAST_BITS = 16


@dataclass(frozen=True)
class Outcome:
    """A result, or the exception that was raised instead of it."""

    result: Any = None
    raised: Exception | None = None
    drawn: bytes = b""


def seed() -> None:
    """Seed the random number generators."""
    random.seed(SEED)
    torch.default_generator.manual_seed(SEED)  # `torch.manual_seed` formats the stack, for later GPUs


def outcome(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Outcome:
    """Call the function with fresh seeds."""
    seed()
    try:
        return Outcome(result=function(*args, **kwargs), drawn=bytes(torch.get_rng_state().numpy()))
    except Exception as error:
        return Outcome(raised=error)


def difference(eager: Outcome, compiled: Outcome, *, exact: bool = True, defined: bool = True) -> str | None:
    """Describe how a compiled outcome differs from eager, or return None.

    The contents are compared if they are `defined`.
    """
    if eager.raised is not None or compiled.raised is not None:
        return raised_difference(eager.raised, compiled.raised)
    if eager.drawn != compiled.drawn:
        return "the random number generator is left in another state"
    return value_difference(eager.result, compiled.result, "result", exact, defined)


def raised_difference(eager: Exception | None, compiled: Exception | None) -> str | None:
    """Describe how two exceptions differ, in class and in message."""
    if type(eager) is type(compiled) and str(eager).strip() == str(compiled).strip():
        return None
    if isinstance(compiled, ThunderError):
        return f"{compiled.code} {type(compiled).__name__}: {compiled}"
    if eager is None:
        return f"raises {error_line(compiled)}"
    if compiled is None:
        return f"eager raises {error_line(eager)}, compiled does not"
    same = "other message" if type(eager) is type(compiled) else "other exception"
    return f"{same}: eager {error_line(eager)}, compiled {error_line(compiled)}"


def error_line(error: Exception | None) -> str:
    """Return an exception as one line."""
    return f"{type(error).__name__}: {str(error).strip()}".replace("\n", " ")[:300]


def value_difference(eager: Any, compiled: Any, where: str, exact: bool, defined: bool) -> str | None:
    """Describe the first difference between two results, with its path."""
    if isinstance(eager, torch.Tensor) and isinstance(compiled, torch.Tensor):
        return tensor_difference(eager, compiled, where, exact, defined)
    if type(eager) is not type(compiled):
        return f"{where}: {type(eager).__name__} in eager, {type(compiled).__name__} compiled"
    if isinstance(eager, Mapping):
        if list(eager) != list(compiled):
            return f"{where}: keys {list(eager)} in eager, {list(compiled)} compiled"
        eager, compiled = list(eager.values()), list(compiled.values())
    if isinstance(eager, tuple | list):
        if len(eager) != len(compiled):
            return f"{where}: {len(eager)} items in eager, {len(compiled)} compiled"
        pairs = enumerate(zip(eager, compiled, strict=True))
        found = (value_difference(one, other, f"{where}[{n}]", exact, defined) for n, (one, other) in pairs)
        return next((text for text in found if text), None)
    if eager != compiled and not (eager != eager and compiled != compiled):
        return f"{where}: {eager!r} in eager, {compiled!r} compiled" if defined else None
    return None


FACTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "class": type,
    "layout": lambda tensor: tensor.layout,
    "dtype": lambda tensor: tensor.dtype,
    "device": lambda tensor: tensor.device,
    "shape": lambda tensor: tuple(tensor.shape),
    "strides": lambda tensor: tensor.stride() if tensor.layout is torch.strided and not tensor.is_nested else None,
    "storage offset": lambda tensor: tensor.storage_offset() if tensor.layout is torch.strided else None,
    "requires_grad": lambda tensor: tensor.requires_grad,
    "is_conj": lambda tensor: tensor.is_conj(),
    "is_neg": lambda tensor: tensor.is_neg(),
    "is_leaf": lambda tensor: tensor.is_leaf,
}


def tensor_difference(
    eager: torch.Tensor, compiled: torch.Tensor, where: str, exact: bool, defined: bool
) -> str | None:
    """Describe the first attribute in which two tensors differ, or the difference of their contents."""
    if eager.is_nested or compiled.is_nested:
        if eager.is_nested != compiled.is_nested:
            return f"{where}: only one is nested"
        return value_difference(list(eager.unbind()), list(compiled.unbind()), where, exact, defined)
    for name, fact in FACTS.items():
        if not exact and name in ("strides", "storage offset"):
            continue
        if fact(eager) != fact(compiled):
            return f"{where}: {name} {fact(eager)} in eager, {fact(compiled)} compiled"
    if not defined:
        return None
    if exact and is_equal(eager.detach(), compiled.detach()):
        return None
    tolerance = {"rtol": 0.0, "atol": 0.0} if exact else {}
    try:
        torch.testing.assert_close(compiled.detach(), eager.detach(), equal_nan=True, check_layout=False, **tolerance)
    except AssertionError as error:
        return f"{where}: {str(error).strip()}".replace("\n", " ")[:300]
    return None


def is_equal(eager: torch.Tensor, compiled: torch.Tensor) -> bool:
    """Whether two tensors differ by a few last bits at most; linear algebra depends on the alignment of matrices."""
    if eager.layout is not torch.strided or not (eager.is_floating_point() or eager.is_complex()) or not eager.numel():
        return False
    largest = float(torch.where(eager.isfinite(), eager.abs(), 0).max())
    bound = LAST_BITS * torch.finfo(eager.dtype).eps * largest
    return torch.allclose(compiled, eager, rtol=0.0, atol=bound, equal_nan=True)


def tensors_of(tree: Any) -> Iterator[torch.Tensor]:
    """Yield every tensor in nested tuples, lists and dicts, in order."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, Mapping):
        for item in tree.values():
            yield from tensors_of(item)
    elif isinstance(tree, tuple | list):
        for item in tree:
            yield from tensors_of(item)


def gradients(output: Any, inputs: list[torch.Tensor], *, create_graph: bool = False) -> list[torch.Tensor | None]:
    """Return the gradients of a random weighted sum of all outputs, for the inputs that require gradients."""
    ends = [tensor for tensor in tensors_of(output) if tensor.requires_grad]
    starts = [tensor for tensor in inputs if tensor.requires_grad]
    if not ends or not starts:
        return []
    seed()
    weights = [torch.randn(end.shape, dtype=end.dtype) for end in ends]
    return list(torch.autograd.grad(ends, starts, weights, allow_unused=True, create_graph=create_graph))


def twice(output: Any, inputs: list[torch.Tensor]) -> list[torch.Tensor | None]:
    """Return second derivatives: the gradients of `gradients`."""
    return gradients(gradients(output, inputs, create_graph=True), inputs)
