"""Locations: the source line and module of a bound symbol in the user's program."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from thunder_core.foundation.errors import SourceLine
from thunder_core.foundation.quick_objects import with_quick_init
from thunder_core.tracing.ir.symbol import BACKWARD_OF


@with_quick_init
@dataclass(frozen=True)
class Location:
    """A location in the program: the user's source line, and the path of the innermost module."""

    source: SourceLine | None = None
    module: str = ""

    def backward(self) -> Location:
        """Return the location of the derivative of a call at this location."""
        return replace(self, module=BACKWARD_OF + (self.module or (self.source.function if self.source else "")))


# The locations of the lines of generated code in the original program, by file name.
GENERATED_LOCATIONS: dict[str, Mapping[int, Location]] = {}


def generated_location(filename: str, lineno: int) -> Location | None:
    """Return the location in the user's program of a line of generated code; None for other code."""
    return GENERATED_LOCATIONS[filename].get(lineno) if filename in GENERATED_LOCATIONS else None


@dataclass
class ForwardLocations:
    """The location in the program of each autograd node. PyTorch numbers nodes in the order of creation."""

    ends: list[int] = field(default_factory=list)
    locations: list[Location] = field(default_factory=list)

    def note(self, source: SourceLine | None, module: str) -> None:
        """Assign this source line and module to the nodes that were created since the last call."""
        number = torch._C._autograd._get_sequence_nr()
        if number > (self.ends[-1] if self.ends else 0):
            self.ends.append(number)
            self.locations.append(Location(source, module))

    def of_backward(self) -> Location | None:
        """Return the location of the derivative that the autograd engine computes now; None if it is unknown."""
        node: torch.autograd.graph.Node | None = torch._C._current_autograd_node()
        if node is None:
            return None
        number = bisect_right(self.ends, node._sequence_nr())
        return self.locations[number].backward() if number < len(self.ends) else None
