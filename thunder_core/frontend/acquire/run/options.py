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
    ReadsCondition,
    Retrace,
    UnrollsLoop,
)


@dataclass(frozen=True)
class RunOptions:
    """The options of a run.

    If `device` is set, the program's model and arguments are assumed to be on it, or only those of their tensors that
    are on the device `moves_from`. If `evaluates` is set, the program may read values of tensors, and each later call
    checks them. If `may_evaluate` is set, a later run may evaluate. A `functional` program reads only its arguments;
    any other read is a sharp edge and is not guarded. Numbers and sizes that are `symbolic` are inputs of each call.
    `lookasides` are called in place of their functions. Errors of a program that `differs_from_eager` are raised as
    they are, because eager PyTorch would not raise them. The functions around the lines of `in_eager` are called in
    eager PyTorch. If `fills_caches` is set, eager PyTorch makes a call that computes values for `functools.lru_cache`.
    If `leaves_to_eager` is set, eager PyTorch makes the calls of a program that no trace can represent.

    The other options are results of earlier runs: at `lines_that_raised`, operations have raised errors that depend on
    values; `detours` are the calls of `torch.compiler.is_compiling()` that return True; a program that
    `is_differentiating` calls `backward` itself; if `reads_texts_at_once` is set, texts are read when they are made;
    if `draws_constants` is set, each call must draw the same numbers; the prologue calls each of the
    `drawing_functions`, which read values of arrays that they draw; each iteration of the `unrolled_loops` is recorded,
    for a reason; and the `read_conditions` of branches on random numbers are read, because not both of their arms can
    be recorded.
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
    unrolled_loops: Mapping[tuple[CodeType, int], str] = field(default_factory=dict)
    read_conditions: frozenset[ReadsCondition] = frozenset()

    @property
    def watches(self) -> bool:
        """Whether the run reports Python code that C code runs natively, which is a sharp edge."""
        return self.sharp_edges != "allow"

    def after(self, error: BaseException) -> RunOptions | None:
        """Return the options of the next run after an error that requests one; None if the caller gets the error."""
        following = self
        if isinstance(error, DataDependent):
            following = self._after_missing_value()
        elif isinstance(error, Retrace) and (change := CHANGES.get(type(error.reason))) is not None:
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

    def of_probe(self, **changes: Any) -> RunOptions:
        """Return the options of a trial run through a `torch.autograd.Function` that the program applies."""
        return RunOptions(
            device=self.device,
            moves_from=self.moves_from,
            nested=self.nested,
            lookasides=self.lookasides,
            drawing_functions=self.drawing_functions,
            unrolled_loops=self.unrolled_loops,
            read_conditions=self.read_conditions,
            **changes,
        )


DEFAULTS = RunOptions()


# The options that change for a reason to trace again.
CHANGES: dict[type, Callable[[RunOptions, Any], dict[str, Any]]] = {
    HidesNumbers: lambda options, reason: {"is_differentiating": True},
    # Only drawn numbers are symbolic in a program whose other numbers are constant.
    NeedsNumbers: lambda options, reason: {"draws_constants": not options.symbolic.may_have_symbols},
    NeedsTexts: lambda options, reason: {"reads_texts_at_once": True},
    NeedsDrawingFunction: lambda options, reason: {"drawing_functions": options.drawing_functions | {reason.code}},
    UnrollsLoop: lambda options, reason: {
        "unrolled_loops": {**options.unrolled_loops, (reason.code, reason.offset): reason.reason}
    },
    ReadsCondition: lambda options, reason: {"read_conditions": options.read_conditions | {reason}},
}
