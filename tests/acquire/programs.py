"""Small programs and their arguments, for which `thunder.jit` must give the same results as eager."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

SCALE = 3.0
TABLE = {"a": 2, "b": [1, 2, 3]}


class Pair(NamedTuple):
    """A named tuple, as argument and as result."""

    left: Tensor
    right: Tensor


@dataclass
class Settings:
    """A plain object that programs read."""

    power: int = 2
    names: list[str] = field(default_factory=lambda: ["x", "y"])
    weight: Tensor = field(default_factory=lambda: torch.full((3,), 0.5))

    @property
    def doubled(self) -> int:
        """Return twice the value, in interpreted code."""
        return self.power * 2


class Node:
    """An object that programs make and return."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.me = self


def shares_a_list(x: Tensor) -> Any:
    """Return two references to one list."""
    inner = [x + 1]
    return inner, inner


def closes_over(scale: float) -> Callable[[Tensor], Tensor]:
    """Call a function with a closure."""

    def scaled(x: Tensor) -> Tensor:
        return x * scale

    return scaled


def branches(x: Tensor, flag: bool = True) -> Tensor:
    return x + 1 if flag else x - 1


def loops(x: Tensor) -> Tensor:
    total = torch.zeros_like(x)
    for index, name in enumerate(TABLE["b"]):
        total = total + x * name**index
    return total


def nested_arguments(batch: dict[str, Any]) -> Any:
    return {key: [item * 2 for item in value] for key, value in batch.items()}


def uses_settings(x: Tensor, settings: Settings) -> Tensor:
    return x**settings.power * settings.doubled + settings.weight * len(settings.names)


def named_tuples(pair: Pair) -> Pair:
    return Pair(pair.right, pair.left + pair.right)


def makes_objects(x: Tensor) -> Node:
    return Node(Node(x * 2))


def writes_in_place(x: Tensor) -> Tensor:
    y = x.clone()
    y[0] = 7
    y[1:] += x[:-1]
    return y.mul_(2)


def handles_exceptions(x: Tensor) -> Tensor:
    try:
        return x @ torch.ones(7, 7)
    except RuntimeError:
        return x * 5


def starred(*args: Tensor, **kwargs: Tensor) -> Tensor:
    return sum(args, torch.zeros(3)) + kwargs.get("bias", 1)


def comprehends(x: Tensor) -> Tensor:
    return torch.stack([x * n for n in range(3) if n != 1]).sum(0)


def generates(x: Tensor) -> Tensor:
    def parts() -> Any:
        for n in range(3):
            yield x * n

    return sum(parts())


def switches_autograd(x: Tensor) -> Tensor:
    with torch.no_grad():
        y = x * 2
    return y + x


def returns_everything(x: Tensor) -> Any:
    return x, None, 1, 2.5, "text", x.shape, x.dtype, (x + 1, [x - 1]), {"k": {"n": x * 2}}, slice(1, 2), {1, 2}


def sorts_with_key(x: Tensor) -> Tensor:
    order = sorted(range(3), key=lambda n: -n)
    return x[order]


def formats(x: Tensor) -> tuple[Tensor, str]:
    return x, f"{tuple(x.shape)}-{x.dtype}"


X = torch.tensor([0.5, -1.0, 2.0])

PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = {
    "closure": (closes_over(4.0), (X,), {}),
    "branch": (branches, (X,), {"flag": False}),
    "default": (branches, (X,), {}),
    "loop over a global": (loops, (X,), {}),
    "global number": (lambda x: x * SCALE, (X,), {}),
    "nested arguments": (nested_arguments, ({"a": [X, X + 1], "b": (X,)},), {}),
    "object": (uses_settings, (X, Settings()), {}),
    "named tuple": (named_tuples, (Pair(X, X * 2),), {}),
    "new objects": (makes_objects, (X,), {}),
    "shared list": (shares_a_list, (X,), {}),
    "in place": (writes_in_place, (X,), {}),
    "exceptions": (handles_exceptions, (X,), {}),
    "starred": (starred, (X, X), {"bias": X}),
    "comprehension": (comprehends, (X,), {}),
    "generator": (generates, (X,), {}),
    "no_grad": (switches_autograd, (X.clone().requires_grad_(),), {}),
    "everything": (returns_everything, (X,), {}),
    "sorted": (sorts_with_key, (X,), {}),
    "f-string": (formats, (X,), {}),
    "method": (lambda node, x: node.me.value * x, (Node(3), X), {}),
}
