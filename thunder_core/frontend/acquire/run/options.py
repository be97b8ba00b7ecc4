"""The options of one run: what the caller asks for, and what earlier runs of the same program have shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any

import torch

from thunder_core.foundation.errors import DataDependent, SourceLine
from thunder_core.frontend.acquire.detours import Detours
from thunder_core.frontend.acquire.outside.drawing_functions import NeedsDrawingFunction
from thunder_core.frontend.acquire.outside.symbolic import CONSTANT, Symbolic
from thunder_core.frontend.acquire.texts import NeedsTexts
from thunder_core.frontend.acquire.traced_run import InEager, Nested
from thunder_core.tracing.capture.symbolic_probe import HiddenNumbers
from thunder_core.tracing.extension.lookaside import Lookaside

# The errors that request another run of the program with other options.
REQUESTS = (HiddenNumbers, NeedsTexts, NeedsDrawingFunction, DataDependent)


@dataclass(frozen=True)
class RunOptions:
    """The options of a run.

    If `device` is set, the program's model and arguments are assumed to be on it. A program that `may_evaluate` reads
    values of tensors that each call checks; it does so if `evaluates` is set. A `functional` program reads only its
    arguments. A run that `watches` reports Python code that C code runs natively. `lookasides` are called in place of
    their functions. A program that `differs_from_eager` raises its own errors. The functions around the lines of
    `in_eager` are called in eager PyTorch.

    The other options are results of earlier runs: at `lines_that_raised`, operations have raised errors that depend on
    values; `detours` are the calls of `torch.compiler.is_compiling()` that return True; a program that
    `is_differentiating` calls `backward` itself; if `reads_texts_at_once` is set, texts are read when they are made;
    and each of the `drawing_functions` is called as a whole, because it draws random numbers.
    """

    device: torch.device | None = None
    may_evaluate: bool = False
    evaluates: bool = False
    symbolic: Symbolic = CONSTANT
    functional: bool = False
    watches: bool = False
    nested: Nested | None = None
    lookasides: Sequence[Lookaside] = ()
    differs_from_eager: bool = False
    in_eager: InEager | None = None
    runs_through_functions: bool = False
    lines_that_raised: frozenset[SourceLine] = frozenset()
    detours: Detours = field(default_factory=Detours)
    is_differentiating: bool = False
    reads_texts_at_once: bool = False
    drawing_functions: frozenset[CodeType] = frozenset()

    def after(self, error: BaseException) -> RunOptions | None:
        """Return the options of the next run after an error that requests one; None if the caller must raise the error.

        If a value is not available, a detour around it is tried first, and then the values are evaluated.
        """
        if isinstance(error, HiddenNumbers):
            return replace(self, is_differentiating=True)
        if isinstance(error, NeedsTexts):
            return replace(self, reads_texts_at_once=True)
        if isinstance(error, NeedsDrawingFunction):
            return replace(self, drawing_functions=self.drawing_functions | {error.code})
        further = self.detours.further()
        if further is not None:
            return replace(self, detours=further)
        if self.evaluates or not self.may_evaluate:
            return None
        return replace(self, evaluates=True, detours=Detours())

    def of_probe(self, **changes: Any) -> RunOptions:
        """Return the options of a run within this one, through a function that the program calls."""
        return RunOptions(device=self.device, nested=self.nested, lookasides=self.lookasides, **changes)
