"""Places: where in the user's program a bound symbol comes from."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from thunder_core.foundation.errors import SourceLine
from thunder_core.tracing.ir.symbol import BACKWARD_OF


@dataclass(frozen=True)
class Place:
    """The place of the program: the user's line and the path of the innermost module."""

    source: SourceLine | None = None
    module: str = ""

    def backward(self) -> Place:
        """The place, as that of the derivative of what was called there."""
        return replace(self, module=BACKWARD_OF + (self.module or (self.source.function if self.source else "")))


# By the name of its file, where the lines of code that was generated from a program come from.
GENERATED_PLACES: dict[str, Mapping[int, Place]] = {}


def generated_place(filename: str, lineno: int) -> Place | None:
    """The place in the user's program that a line of generated code comes from; None for all other code."""
    return GENERATED_PLACES[filename].get(lineno) if filename in GENERATED_PLACES else None


@dataclass
class ForwardPlaces:
    """The places that made nodes of autograd: PyTorch numbers these in the order in which they are made."""

    ends: list[int] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)

    def note(self, place: Place) -> None:
        """Nodes that came into being since the last note belong to this place."""
        number = torch._C._autograd._get_sequence_nr()
        if number > (self.ends[-1] if self.ends else 0):
            self.ends.append(number)
            self.places.append(place)

    def of_backward(self) -> Place | None:
        """The place of the forward's bound symbol whose derivative the engine computes now; None if that is unknown."""
        node: torch.autograd.graph.Node | None = torch._C._current_autograd_node()
        if node is None:
            return None
        number = bisect_right(self.ends, node._sequence_nr())
        return self.places[number].backward() if number < len(self.ends) else None
