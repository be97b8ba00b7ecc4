"""Whether a call may be made again after its computation raised, given the side effects so far."""

from __future__ import annotations

import torch

from thunder_core.backend.runtime.blame import generated_frames
from thunder_core.backend.runtime.undo import inputs_written_before_caught_error, lines_of
from thunder_core.foundation.errors import SourceLine, ThunderError
from thunder_core.tracing.analysis.aliasing import writes_to_inputs
from thunder_core.tracing.analysis.catchable_errors import CatchableErrors
from thunder_core.tracing.capture.torch_facts.settings import settings_of
from thunder_core.tracing.capture.torch_facts.slices import is_drawing
from thunder_core.tracing.capture.torch_facts.switches import switches_mode
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.library.checks import REQUIRE
from thunder_core.tracing.library.objects import CHECK_NAMES

NEVER_CAUGHT = (ThunderError, MemoryError, torch.OutOfMemoryError)  # errors that have nothing to do with values


def caught_errors_of(computation: Trace, last: Trace, lines: frozenset[SourceLine]) -> CatchableErrors | None:
    """Return the errors that a computation may raise at `lines`, where the program catches them; None without lines.

    `last` is the trace that runs. The result is also None if a call cannot be traced again after such an error, because
    the computation may have changed a state that is not restored.
    """
    if not lines or any(map(is_lasting, computation.bound_symbols)):
        return None
    caught = [(index, lines & lines_of(bsym)) for index, bsym in enumerate(last.bound_symbols)]
    return CatchableErrors(
        lines=tuple(sorted(lines, key=str)),
        lines_of_statements=tuple((index, tuple(sorted(at, key=str))) for index, at in caught if at),
        written=inputs_written_before_caught_error(last, lines) or (),
        draws=any(map(is_drawing, last.bound_symbols)),
        writes=writes_to_inputs(computation),
    )


def depends_on_values(error: Exception) -> bool:
    """Whether an error of a program may depend on tensor values: an operation raised it, and memory was left."""
    return not isinstance(error, NEVER_CAUGHT) and not was_raised_by_epilogue(error)


def may_run_again(computation: Trace, epilogue: Trace) -> bool:
    """Whether a call whose computation failed should run again in eager PyTorch, for its side effects.

    The program has effects to make, and has made none of them yet. The effects to make are those of the epilogue, and
    changes of settings. The program may have made effects if it writes to its inputs, draws random numbers or
    communicates.
    """
    bsyms = computation.bound_symbols
    if any(bsym.communicates or changes_state(bsym) for bsym in bsyms):
        return False
    if not has_effects(epilogue) and not settings_of(bsyms):
        return False
    return not writes_to_inputs(computation)


def has_effects(epilogue: Trace) -> bool:
    """Whether an epilogue writes to the user's objects."""
    return any(bsym.output is None for bsym in epilogue.bound_symbols)


def was_raised_by_epilogue(failure: Exception) -> bool:
    """Whether an error was raised by a program's epilogue."""
    return any(frame.f_code.co_name == "epilogue" for frame, _ in generated_frames(failure))


def is_lasting(bsym: BoundSymbol) -> bool:
    """Whether the effect of a bound symbol remains if the program fails: a change of state, or a collective."""
    return bsym.communicates or (changes_state(bsym) and not is_drawing(bsym))


def changes_state(bsym: BoundSymbol) -> bool:
    """Whether a bound symbol changes the state of the process that a failing program does not restore."""
    is_put_back = settings_of((bsym,)) or switches_mode(bsym)
    return bsym.ordered and bsym.symbol.name not in {*CHECK_NAMES, REQUIRE} and not is_put_back
