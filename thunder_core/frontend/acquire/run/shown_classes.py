"""The classes that a program sees in place of the classes of symbolic numbers, texts and fakes."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from thunder_core.tracing.capture.symbolic.numbers import SymbolicNumber
from thunder_core.tracing.capture.symbolic.sequences import SEQUENCES
from thunder_core.tracing.capture.torch_facts.texts import SymbolicText

READ_NODE = "read the node outside the compiled program"  # what to do instead of reading a node from outside
# maps classes of replacements to the classes that programs see
CLASSES: dict[type, type] = {
    FakeTensor: torch.Tensor,
    SymbolicText: str,
    **{symbolic: kind for kind, symbolic in SEQUENCES.items()},
}


def shown_class(value: Any) -> type | None:
    """Return the class that programs see for a symbolic number, a fake or a symbolic text; None for other objects."""
    if issubclass(type(value), SymbolicNumber):
        kind: type = value.kind
        return kind
    return CLASSES.get(type(value))
