"""Assignments to `tensor.real` and `tensor.imag`, which copy a value into a part of the tensor."""

from __future__ import annotations

from typing import Any

from thunder_core.frontend.acquire.lookaside_table import lookaside_of_each
from thunder_core.frontend.acquire.run.complex_parts import PARTS, is_value_of_part, write_part
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.observer import NOT_TAKEN, NotTaken


@lookaside_of_each(*(part.__set__ for part in PARTS.values()))
def set_part(function: Any, run: TracedRun, /, *args: Any) -> NotTaken | None:
    """Record a call of the setter of `real` or `imag`, which PyTorch's modes do not see, as an assignment."""
    if len(args) != 2 or not is_value_of_part(args[1]):
        return NOT_TAKEN
    write_part(run.machine, args[0], function.__self__.__name__, args[1])
    return None
