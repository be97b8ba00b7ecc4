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

    If `device` is set, the program's model and arguments are assumed to be on it. If `evaluates` is
    set, the program may read values of tensors, and each later call checks them. If `may_evaluate` is set, a later run
    may evaluate. A `functional` program reads only its
    arguments. A run that `watches` reports Python code that C code runs natively. `lookasides` are called in place of
    their functions. Errors of a program that `differs_from_eager` are raised as they are, because
    eager PyTorch would not raise them. The functions around the lines of
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

        For `DataDependent`, a detour around the value is tried first. If no detour is left, values are evaluated.
        """
        if isinstance(error, HiddenNumbers):
            return self._unless_equal(replace(self, is_differentiating=True))
        if isinstance(error, NeedsTexts):
            return self._unless_equal(replace(self, reads_texts_at_once=True))
        if isinstance(error, NeedsDrawingFunction):
            return self._unless_equal(replace(self, drawing_functions=self.drawing_functions | {error.code}))
        if not isinstance(error, DataDependent):
            return None
        further = self.detours.further()
        if further is not None:
            return replace(self, detours=further)
        if self.evaluates or not self.may_evaluate:
            return None
        return replace(self, evaluates=True, detours=Detours())

    def _unless_equal(self, options: RunOptions) -> RunOptions | None:
        """Return other options; None for equal options, with which the same error would be raised again."""
        return None if options == self else options

    def of_probe(self, **changes: Any) -> RunOptions:
        """Return the options of a trial run through a `torch.autograd.Function` that the program applies."""
        return RunOptions(
            device=self.device,
            nested=self.nested,
            lookasides=self.lookasides,
            drawing_functions=self.drawing_functions,
            **changes,
        )
