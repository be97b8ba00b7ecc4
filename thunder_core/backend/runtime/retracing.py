"""Whether a call may be traced again after its computation raised, given the side effects so far."""

from __future__ import annotations

import torch

from thunder_core.backend.runtime.blame import generated_frames, user_line
from thunder_core.foundation.errors import SourceLine, ThunderError
from thunder_core.tracing.analysis.aliasing import writes_to_inputs
from thunder_core.tracing.capture.torch_facts.settings import settings_of
from thunder_core.tracing.capture.torch_facts.slices import is_drawing
from thunder_core.tracing.capture.torch_facts.switches import switches_mode
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.library.checks import REQUIRE
from thunder_core.tracing.library.objects import CHECK_NAMES


def lines_caught(
    computation: Trace, last: Trace, caught: frozenset[SourceLine], error: Exception
) -> frozenset[SourceLine]:
    """Return the lines with caught errors at which an error may have been raised; `last` is the trace that ran.

    The result is empty if the call cannot be traced again, because the computation has changed a state that is not
    restored, or may have written to its inputs after the lines. (Writes before the lines are undone.)
    """
    if not caught or isinstance(error, (ThunderError, MemoryError, torch.OutOfMemoryError)):
        return frozenset()
    if was_raised_by_epilogue(error) or any(is_lasting(bsym) for bsym in computation.bound_symbols):
        return frozenset()
    line = user_line(error, last)
    if line is None:
        return frozenset() if writes_to_inputs(computation) else caught
    return caught & {line}


def draws(computation: Trace) -> bool:
    """Whether a computation draws random numbers."""
    return any(map(is_drawing, computation.bound_symbols))


def was_raised_by_epilogue(failure: Exception) -> bool:
    """Whether an error was raised by a program's epilogue."""
    return any(frame.f_code.co_name == "epilogue" for frame, _ in generated_frames(failure))


def is_lasting(bsym: BoundSymbol) -> bool:
    """Whether the effect of a bound symbol remains if the program fails: a change of state, or a collective."""
    return bsym.communicates or (changes_state(bsym) and not is_drawing(bsym))


def changes_state(bsym: BoundSymbol) -> bool:
    """Whether a bound symbol changes a state of the process that a failing program does not restore."""
    is_put_back = settings_of((bsym,)) or switches_mode(bsym)
    return bsym.ordered and bsym.symbol.name not in {*CHECK_NAMES, REQUIRE} and not is_put_back
