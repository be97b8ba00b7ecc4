"""Decide when a graph copies a static input whose address changes, instead of reading the input in place.

A capture takes longer than many copies, and waits for the GPU. So a static input whose address changes at each call
must not cause a capture at each call. An example is the output of another model as a member of a dataclass: members
count as caches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch

FEW_REPLAYS = 32  # a change of an address after fewer replays than this is an early change
EARLY_CHANGES = 3  # the number of successive early changes after which an input is copied


@dataclass
class CopiedInput:
    """The address of a copied input in the last call, and the number of calls since the address last changed."""

    address: int
    calls: int = 0


@dataclass
class AddressChanges:
    """The address changes of a function's static inputs. Inputs are numbered by their positions.

    An input is copied after `EARLY_CHANGES` early changes, and read in place again after its address has been the same
    for `FEW_REPLAYS` calls. An input whose address changes at each call causes `EARLY_CHANGES` captures in addition to
    the first. If the address is then the same for `FEW_REPLAYS` calls, and changes at each call again, this causes
    `EARLY_CHANGES` + 1 more captures.
    """

    early_changes: Counter[int] = field(default_factory=Counter)
    copied: dict[int, CopiedInput] = field(default_factory=dict)

    def note_changes(self, changed: Iterable[int], replays: int, tensors: Sequence[torch.Tensor]) -> None:
        """Note that the addresses of inputs changed after a number of replays of a graph that reads them in place."""
        for index in changed:
            self.early_changes[index] = self.early_changes[index] + 1 if replays < FEW_REPLAYS else 0
            if self.early_changes[index] >= EARLY_CHANGES:
                self.copied[index] = CopiedInput(tensors[index].data_ptr())

    def has_stable_input(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Note the addresses of the copied inputs, and return whether one of them can be read in place again."""
        settled = []
        for index, stay in self.copied.items():
            if (address := tensors[index].data_ptr()) == stay.address:
                stay.calls += 1
            else:
                self.copied[index] = CopiedInput(address)
            if stay.calls >= FEW_REPLAYS:
                settled.append(index)
        for index in settled:
            del self.copied[index], self.early_changes[index]
        return bool(settled)
