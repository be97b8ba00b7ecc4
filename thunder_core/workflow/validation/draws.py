"""Record the random numbers of a call. Two calls are comparable only if they use the same random numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

Draw = tuple[str, tuple[torch.Tensor, ...]]  # an operation, and the random numbers that it drew
# The ATen operations that return only random numbers.
PLAIN_DRAWS = frozenset(
    {"rand", "rand_like", "randn", "randn_like", "randint", "randint_like", "randperm", "bernoulli", "bernoulli_"}
    | {"normal", "normal_", "uniform_", "random_", "exponential_", "geometric_", "cauchy_", "log_normal_"}
    | {"multinomial", "poisson"}
)


def random_state(devices: Iterable[torch.device]) -> tuple[torch.Tensor, ...]:
    """Return the states of PyTorch's generators of the CPU and of these GPUs."""
    return (torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in devices))


def same_state(before: Sequence[torch.Tensor], after: Sequence[torch.Tensor]) -> bool:
    """Whether two states of the generators are equal."""
    return all(torch.equal(*pair) for pair in zip(before, after, strict=True))


@dataclass
class DrawnValues:
    """The random numbers of the operations that changed the state of a generator, in order."""

    devices: Sequence[torch.device]
    draws: list[Draw] = field(default_factory=list)

    def record(self, recorded: DrawnValues | None = None) -> TorchDispatchMode:
        """Return a mode that records random numbers; if `recorded` is passed, its numbers replace the drawn numbers.

        In this way, a reference in a wider dtype uses eager's random numbers. Without the replacement, the same seed
        may give other numbers in that dtype.
        """
        return _Recorder(self, () if recorded is None else tuple(recorded.draws))

    def agree_with(self, other: DrawnValues) -> bool:
        """Whether the same operations drew the same numbers, to the precision of the narrower dtype.

        For one seed, the numbers may depend on the dtype in which they are drawn.
        """
        return len(self.draws) == len(other.draws) and all(map(_is_same_draw, self.draws, other.draws))


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, draws: DrawnValues, recorded: Sequence[Draw]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.draws, self.recorded = draws, recorded

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **(kwargs or {}))
        before = random_state(self.draws.devices)
        result = func(*args, **(kwargs or {}))
        if not same_state(before, random_state(self.draws.devices)):
            self._replace_by_recorded(func, result)
            tensors = [leaf.detach() for leaf in _pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
            masks = [tensor for tensor in tensors if tensor.dtype == torch.bool]
            self.draws.draws.append((str(func), tuple(tensor.clone() for tensor in masks or tensors)))
        return result

    def _replace_by_recorded(self, func: Any, result: object) -> None:
        """Write the recorded numbers into the result of an operation that draws numbers of the same shape."""
        index = len(self.draws.draws)
        if index >= len(self.recorded) or func.overloadpacket.__name__ not in PLAIN_DRAWS:
            return
        name, tensors = self.recorded[index]
        shapes = [tensor.shape for tensor in tensors]
        if name == str(func) and isinstance(result, torch.Tensor) and shapes == [result.shape]:
            result.copy_(tensors[0])


def _is_same_draw(draw: Draw, other_draw: Draw) -> bool:
    (name, first), (other_name, second) = draw, other_draw
    return name == other_name and len(first) == len(second) and all(map(_close, first, second))


def _close(first: torch.Tensor, second: torch.Tensor) -> bool:
    widths = [torch.finfo(tensor.dtype).eps for tensor in (first, second) if tensor.is_floating_point()]
    if first.shape != second.shape:
        return False
    return torch.allclose(first.double(), second.double(), rtol=max(widths, default=0.0), atol=0.0)
