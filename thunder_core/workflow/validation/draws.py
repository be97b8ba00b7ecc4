"""The random numbers that a call draws. Two calls can be compared only if their dropout draws the same numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

Draw = tuple[str, tuple[torch.Tensor, ...]]  # an operation, and what it drew
# The operations of ATen whose result is what they draw.
PLAIN_DRAWS = frozenset(
    {"rand", "rand_like", "randn", "randn_like", "randint", "randint_like", "randperm", "bernoulli", "bernoulli_"}
    | {"normal", "normal_", "uniform_", "random_", "exponential_", "geometric_", "cauchy_", "log_normal_"}
    | {"multinomial", "poisson"}
)


def random_state(devices: Iterable[torch.device]) -> tuple[torch.Tensor, ...]:
    """The states of PyTorch's generators: the CPU's, and those of these GPUs."""
    return (torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in devices))


def same_state(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    """Whether the same numbers would come next."""
    return all(torch.equal(*pair) for pair in zip(one, other, strict=True))


@dataclass
class DrawnValues:
    """The draws of the operations that changed the state of a generator, in their order."""

    devices: Sequence[torch.device]
    taken: list[Draw] = field(default_factory=list)

    def note(self, given: DrawnValues | None = None) -> TorchDispatchMode:
        """A mode that notes what is drawn beneath it, and gives each draw of `given` in the place of a new one.

        So a reference in a wider dtype computes with the numbers of eager PyTorch: in that dtype, the same seed may
        stand for others.
        """
        return _Noting(self, () if given is None else tuple(given.taken))

    def agree_with(self, other: DrawnValues) -> bool:
        """Whether the same operations drew the same numbers, to the precision of the narrower dtype.

        The numbers that a seed stands for may depend on the dtype that they are drawn in.
        """
        return len(self.taken) == len(other.taken) and all(map(_same, self.taken, other.taken))


class _Noting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, draws: DrawnValues, given: Sequence[Draw]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.draws, self.given = draws, given

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **(kwargs or {}))
        before = random_state(self.draws.devices)
        made = func(*args, **(kwargs or {}))
        if not same_state(before, random_state(self.draws.devices)):
            self._give(func, made)
            tensors = [one.detach() for one in _pytree.tree_leaves(made) if isinstance(one, torch.Tensor)]
            masks = [one for one in tensors if one.dtype == torch.bool]
            self.draws.taken.append((str(func), tuple(one.clone() for one in masks or tensors)))
        return made

    def _give(self, func: Any, made: object) -> None:
        """Write the given draw into the tensor that was drawn, if that is the draw itself and of the same shape."""
        place = len(self.draws.taken)
        if place >= len(self.given) or func.overloadpacket.__name__ not in PLAIN_DRAWS:
            return
        name, tensors = self.given[place]
        if name == str(func) and isinstance(made, torch.Tensor) and [one.shape for one in tensors] == [made.shape]:
            made.copy_(tensors[0])


def _same(one: Draw, other: Draw) -> bool:
    (name, mine), (other_name, theirs) = one, other
    return name == other_name and len(mine) == len(theirs) and all(map(_close, mine, theirs))


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    widths = [torch.finfo(tensor.dtype).eps for tensor in (one, other) if tensor.is_floating_point()]
    if one.shape != other.shape:
        return False
    return torch.allclose(one.double(), other.double(), rtol=max(widths, default=0.0), atol=0.0)
