"""Static inputs that move: when a graph copies them instead of reading them in place.

A capture takes longer than many copies, and waits for the GPU. So a static input whose address changes at each call
must not cause a capture at each call. An example is the output of another model as a member of a dataclass: members
count as caches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch

FEW_REPLAYS = 32  # a move after fewer replays than this is a soon move
SOON_MOVES = 3  # the number of moves in succession, each soon, after which an input is copied


@dataclass
class Stay:
    """The address of a copied input in the last call, and the number of calls in which it has stayed there."""

    address: int
    calls: int = 0


@dataclass
class Moves:
    """The static inputs of a function that move soon after each capture. Inputs are numbered by their positions.

    An input is copied after `SOON_MOVES` soon moves, and read in place again after it has stayed at one address for
    `FEW_REPLAYS` calls. So an input that moves at each call causes `SOON_MOVES` captures in addition to the first. An
    input that settles for `FEW_REPLAYS` calls and then moves at each call causes `SOON_MOVES` + 1 captures more.
    """

    soon: Counter[int] = field(default_factory=Counter)
    copied: dict[int, Stay] = field(default_factory=dict)

    def note_moves(self, moved: Iterable[int], replays: int, tensors: Sequence[torch.Tensor]) -> None:
        """Note that inputs have moved after a number of replays of a graph that reads them in place."""
        for index in moved:
            self.soon[index] = self.soon[index] + 1 if replays < FEW_REPLAYS else 0
            if self.soon[index] >= SOON_MOVES:
                self.copied[index] = Stay(tensors[index].data_ptr())

    def has_settled(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Note the addresses of the copied inputs, and return whether one of them can be read in place again."""
        settled = []
        for index, stay in self.copied.items():
            if (address := tensors[index].data_ptr()) == stay.address:
                stay.calls += 1
            else:
                self.copied[index] = Stay(address)
            if stay.calls >= FEW_REPLAYS:
                settled.append(index)
        for index in settled:
            del self.copied[index], self.soon[index]
        return bool(settled)
