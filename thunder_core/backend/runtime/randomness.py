"""The states of random number generators: the generators of the process, and generators among a program's inputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True)
class RandomState:
    """The states of the CPU's generator, of the generators of all CUDA devices in use, and of other generators."""

    cpu: torch.Tensor
    cuda: Mapping[int, torch.Tensor] = field(default_factory=dict)
    generators: Sequence[tuple[torch.Generator, torch.Tensor]] = ()

    @classmethod
    def now(cls, generators: Iterable[Any] = ()) -> RandomState:
        """Return the current states, including the states of the generators among `generators`."""
        return cls(
            cpu=torch.get_rng_state(),
            cuda={device: torch.cuda.get_rng_state(device) for device in cuda_devices()},
            generators=[(each, each.get_state()) for each in generators if isinstance(each, torch.Generator)],
        )

    def put_back(self) -> None:
        """Restore the states of the generators."""
        torch.set_rng_state(self.cpu)
        for device, state in self.cuda.items():
            torch.cuda.set_rng_state(state, device)
        for generator, state in self.generators:
            generator.set_state(state)


def cuda_devices() -> range:
    """Return the CUDA devices that may have drawn numbers: all of them once CUDA is in use, and none before.

    Querying a state would initialize CUDA.
    """
    in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return range(torch.cuda.device_count() if in_use else 0)


@contextmanager
def drawing_from(state: RandomState) -> Iterator[None]:
    """Within this context, generators continue from a state; afterwards they are restored."""
    before = RandomState.now(generator for generator, _ in state.generators)
    try:
        state.put_back()
        yield
    finally:
        before.put_back()
