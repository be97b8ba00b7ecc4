"""The options of one run: settings of the caller, and results of earlier runs of the same program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any

import torch

from thunder_core.foundation.errors import DataDependent, SourceLine
from thunder_core.foundation.options.compile_options import SharpEdges
from thunder_core.frontend.acquire.detours import Detours
from thunder_core.frontend.acquire.outside.symbolic import CONSTANT, Symbolic
from thunder_core.frontend.acquire.traced_run import InEager, Nested
from thunder_core.tracing.extension.lookaside import Lookaside
from thunder_core.tracing.ir.retrace import (
    HidesNumbers,
    NeedsDrawingFunction,
    NeedsNumbers,
    NeedsTexts,
    ReadsAssignment,
    ReadsCondition,
    Retrace,
    UnrollsLoop,
)


@dataclass(frozen=True)
class RunOptions:
    """The options of a run: settings of the caller, and results of earlier runs of the same program.

    Settings of the caller:

    - `device`: the program is traced as if its model and arguments were on this device. If `moves_from` is set, only
      the tensors on the device `moves_from` are assumed to move.
    - `evaluates_tensor_values`: the program may read values of tensors, and each later call checks them.
    - `may_evaluate`: a later run may set `evaluates_tensor_values`.
    - `symbolic`: which numbers and sizes are symbolic instead of constant.
    - `functional`: the program reads only its arguments. Any other read is a sharp edge, and is not guarded.
    - `sharp_edges`: the policy for sharp edges.
    - `nested`: the callback that records a call of a compiled function as one bound symbol.
    - `lookasides`: the user's functions that are called in place of other functions.
    - `differs_from_eager`: the program may compute something else than eager PyTorch, so its errors are raised without
      a comparison with eager PyTorch.
    - `eager_functions`: the callback that runs functions in eager PyTorch if they contain one of the source lines
      `eager_functions.lines`.
    - `interprets_autograd_functions`: the forward of a `torch.autograd.Function` is interpreted, even if its inputs
      require gradients.
    - `leaves_cache_fills_to_eager`: if tracing cannot put a new value into a `functools.lru_cache`, the whole call runs
      in eager PyTorch.
    - `leaves_to_eager`: calls that no trace can represent run in eager PyTorch.

    Results of earlier runs:

    - `lines_that_raised`: lines with operations that have raised errors which depend on values.
    - `detours`: the calls of `torch.compiler.is_compiling()` that return True.
    - `is_differentiating`: the program itself calls `backward`.
    - `reads_texts_at_once`: strings that depend on unknown values are evaluated when they are created.
    - `draws_constants`: each call must draw the same numbers.
    - `drawing_functions`: the code objects of functions that read random arrays which they create. The prologue calls
      these functions.
    - `reads_assignments`: the indices from SciPy's `linear_sum_assignment` are read as values.
    - `unrolled_loops`: loops whose iterations are all recorded, each with the reason.
    - `read_conditions`: branches on tensors whose conditions are read, because the two arms cannot both be recorded.
    """

    device: torch.device | None = None
    moves_from: torch.device | None = None
    may_evaluate: bool = False
    evaluates_tensor_values: bool = False
    symbolic: Symbolic = CONSTANT
    functional: bool = False
    sharp_edges: SharpEdges = "allow"
    nested: Nested | None = None
    lookasides: Sequence[Lookaside] = ()
    differs_from_eager: bool = False
    eager_functions: InEager | None = None
    interprets_autograd_functions: bool = False
    leaves_cache_fills_to_eager: bool = False
    leaves_to_eager: bool = False
    lines_that_raised: frozenset[SourceLine] = frozenset()
    detours: Detours = field(default_factory=Detours)
    is_differentiating: bool = False
    reads_texts_at_once: bool = False
    draws_constants: bool = False
    drawing_functions: frozenset[CodeType] = frozenset()
    reads_assignments: bool = False
    unrolled_loops: Mapping[tuple[CodeType, int], str] = field(default_factory=dict)
    read_conditions: frozenset[ReadsCondition] = frozenset()

    @property
    def watches_native_code(self) -> bool:
        """Whether the run reports Python code that C code calls outside the interpreter. Such code is a sharp edge."""
        return self.sharp_edges != "allow"

    def after(self, error: BaseException) -> RunOptions | None:
        """Return the options of the next run after an error; None if there is no next run and the error is raised."""
        next_options = self
        if isinstance(error, DataDependent):
            next_options = self._after_missing_value()
        elif isinstance(error, Retrace) and (change := CHANGED_OPTIONS.get(type(error.reason))) is not None:
            next_options = replace(self, **change(self, error.reason))
        # With equal options, the same error would be raised again.
        return None if next_options == self else next_options

    def _after_missing_value(self) -> RunOptions:
        """Return the options of the next run after a run that needs the value of a tensor.

        A detour around the value is tried first. If no detour is left and `may_evaluate` is set, values are evaluated.
        """
        next_detours = self.detours.further()
        if next_detours is not None:
            return replace(self, detours=next_detours)
        if self.evaluates_tensor_values or not self.may_evaluate:
            return self
        return replace(self, evaluates_tensor_values=True, detours=Detours())

    def for_probe(self, **changes: Any) -> RunOptions:
        """Return the options of a trial run through a `torch.autograd.Function` that the program applies."""
        return RunOptions(
            device=self.device,
            moves_from=self.moves_from,
            nested=self.nested,
            lookasides=self.lookasides,
            drawing_functions=self.drawing_functions,
            reads_assignments=self.reads_assignments,
            unrolled_loops=self.unrolled_loops,
            read_conditions=self.read_conditions,
            **changes,
        )


DEFAULTS = RunOptions()


# For each reason that changes the options of the next run, the function that returns the changed options.
CHANGED_OPTIONS: dict[type, Callable[[RunOptions, Any], dict[str, Any]]] = {
    HidesNumbers: lambda options, reason: {"is_differentiating": True},
    # If no other number may be symbolic, the symbolic numbers are random draws, so the draws become constants.
    NeedsNumbers: lambda options, reason: {"draws_constants": not options.symbolic.may_have_symbols},
    NeedsTexts: lambda options, reason: {"reads_texts_at_once": True},
    NeedsDrawingFunction: lambda options, reason: {"drawing_functions": options.drawing_functions | {reason.code}},
    ReadsAssignment: lambda options, reason: {"reads_assignments": True},
    UnrollsLoop: lambda options, reason: {
        "unrolled_loops": {**options.unrolled_loops, (reason.code, reason.offset): reason.reason}
    },
    ReadsCondition: lambda options, reason: {"read_conditions": options.read_conditions | {reason}},
}
