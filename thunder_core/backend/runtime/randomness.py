"""The states of random number generators: of the process's own, and of those that a program is given."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True)
class RandomState:
    """The states of the CPU's generator, of those of all CUDA devices where CUDA is in use, and of some others."""

    cpu: torch.Tensor
    cuda: Mapping[int, torch.Tensor] = field(default_factory=dict)
    others: Sequence[tuple[torch.Generator, torch.Tensor]] = ()

    @classmethod
    def now(cls, others: Iterable[Any] = ()) -> RandomState:
        """The states as they are, with those of the generators among `others`."""
        return cls(
            cpu=torch.get_rng_state(),
            cuda={device: torch.cuda.get_rng_state(device) for device in cuda_devices()},
            others=[(one, one.get_state()) for one in others if isinstance(one, torch.Generator)],
        )

    def put_back(self) -> None:
        """Make the generators what they were."""
        torch.set_rng_state(self.cpu)
        for device, state in self.cuda.items():
            torch.cuda.set_rng_state(state, device)
        for generator, state in self.others:
            generator.set_state(state)


def cuda_devices() -> range:
    """The CUDA devices that may have drawn numbers: all of them once CUDA is in use, and none before.

    To ask for a state would begin to use it.
    """
    in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return range(torch.cuda.device_count() if in_use else 0)


@contextmanager
def drawing_from(state: RandomState) -> Iterator[None]:
    """While this lasts, generators go on from a state; after it they are where they were before."""
    before = RandomState.now(one for one, _ in state.others)
    try:
        state.put_back()
        yield
    finally:
        before.put_back()
