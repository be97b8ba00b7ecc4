"""The random numbers that a call draws: with others in its dropout a model cannot be compared with itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode


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
    taken: list[tuple[str, tuple[torch.Tensor, ...]]] = field(default_factory=list)

    def note(self) -> TorchDispatchMode:
        """A mode that notes what is drawn beneath it."""
        return _Noting(self)

    def agree_with(self, other: DrawnValues) -> bool:
        """Whether the same operations drew the same numbers, to the precision of the narrower dtype.

        The numbers that a seed stands for may depend on the dtype that they are drawn in.
        """
        return len(self.taken) == len(other.taken) and all(map(_same, self.taken, other.taken))


class _Noting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, draws: DrawnValues) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.draws = draws

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **(kwargs or {}))
        before = random_state(self.draws.devices)
        made = func(*args, **(kwargs or {}))
        if not same_state(before, random_state(self.draws.devices)):
            tensors = [one.detach() for one in _pytree.tree_leaves(made) if isinstance(one, torch.Tensor)]
            masks = [one for one in tensors if one.dtype == torch.bool]
            self.draws.taken.append((str(func), tuple(one.clone() for one in masks or tensors)))
        return made


def _same(one: tuple[str, tuple[torch.Tensor, ...]], other: tuple[str, tuple[torch.Tensor, ...]]) -> bool:
    (name, mine), (other_name, theirs) = one, other
    return name == other_name and len(mine) == len(theirs) and all(map(_close, mine, theirs))


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    widths = [torch.finfo(tensor.dtype).eps for tensor in (one, other) if tensor.is_floating_point()]
    if one.shape != other.shape:
        return False
    return torch.allclose(one.double(), other.double(), rtol=max(widths, default=0.0), atol=0.0)
