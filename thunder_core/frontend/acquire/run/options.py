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
    - `evaluates`: the program may read values of tensors, and each later call checks them. `may_evaluate`: a later run
      may set `evaluates`.
    - `symbolic`: the numbers and sizes that are inputs of each call.
    - `functional`: the program reads only its arguments. Any other read is a sharp edge, and is not guarded.
    - `sharp_edges`: the policy for sharp edges.
    - `nested`: calls compiled functions that the program does not trace through.
    - `lookasides`: the user's functions that are called in place of other functions.
    - `differs_from_eager`: the program's errors are raised as they are, because eager PyTorch would not raise them.
    - `in_eager`: the functions that contain the lines of `in_eager` are called in eager PyTorch.
    - `runs_through_functions`: the forward of a `torch.autograd.Function` is interpreted, even if autograd tracks it.
    - `fills_caches`: eager PyTorch makes a call that computes values for `functools.lru_cache`.
    - `leaves_to_eager`: eager PyTorch makes the calls of a program that no trace can represent.

    Results of earlier runs:

    - `lines_that_raised`: lines with operations that have raised errors which depend on values.
    - `detours`: the calls of `torch.compiler.is_compiling()` that return True.
    - `is_differentiating`: the program itself calls `backward`.
    - `reads_texts_at_once`: strings that depend on unknown values are read when they are made.
    - `draws_constants`: each call must draw the same numbers.
    - `drawing_functions`: functions that read values of arrays that they draw. The prologue calls these functions.
    - `reads_assignments`: the indices of an assignment by SciPy are read as values.
    - `unrolled_loops`: loops whose iterations are all recorded, each with the reason.
    - `read_conditions`: branches on tensors whose conditions are read, because not both arms can be recorded.
    """

    device: torch.device | None = None
    moves_from: torch.device | None = None
    may_evaluate: bool = False
    evaluates: bool = False
    symbolic: Symbolic = CONSTANT
    functional: bool = False
    sharp_edges: SharpEdges = "allow"
    nested: Nested | None = None
    lookasides: Sequence[Lookaside] = ()
    differs_from_eager: bool = False
    in_eager: InEager | None = None
    runs_through_functions: bool = False
    fills_caches: bool = False
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
        """Whether the run reports Python code that C code runs natively, which is a sharp edge."""
        return self.sharp_edges != "allow"

    def after(self, error: BaseException) -> RunOptions | None:
        """Return the options of the next run after an error; None if there is no next run and the error is raised."""
        following = self
        if isinstance(error, DataDependent):
            following = self._after_missing_value()
        elif isinstance(error, Retrace) and (change := CHANGED_OPTIONS.get(type(error.reason))) is not None:
            following = replace(self, **change(self, error.reason))
        return None if following == self else following  # with equal options, the same error would be raised again

    def _after_missing_value(self) -> RunOptions:
        """Return the options of the next run after a run that needs the value of a tensor.

        A detour around the value is tried first. If no detour is left, values are evaluated.
        """
        further = self.detours.further()
        if further is not None:
            return replace(self, detours=further)
        if self.evaluates or not self.may_evaluate:
            return self
        return replace(self, evaluates=True, detours=Detours())

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


# For each reason to trace again, the function that returns the changed options.
CHANGED_OPTIONS: dict[type, Callable[[RunOptions, Any], dict[str, Any]]] = {
    HidesNumbers: lambda options, reason: {"is_differentiating": True},
    # Only drawn numbers are symbolic in a program whose other numbers are constant.
    NeedsNumbers: lambda options, reason: {"draws_constants": not options.symbolic.may_have_symbols},
    NeedsTexts: lambda options, reason: {"reads_texts_at_once": True},
    NeedsDrawingFunction: lambda options, reason: {"drawing_functions": options.drawing_functions | {reason.code}},
    ReadsAssignment: lambda options, reason: {"reads_assignments": True},
    UnrollsLoop: lambda options, reason: {
        "unrolled_loops": {**options.unrolled_loops, (reason.code, reason.offset): reason.reason}
    },
    ReadsCondition: lambda options, reason: {"read_conditions": options.read_conditions | {reason}},
}
