"""The options of one tracing run, in which Thunder interprets the user's function once."""

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
from thunder_core.frontend.acquire.run.call_attempts import CallAttempts
from thunder_core.frontend.acquire.traced_run import EagerFunctionCalls, Nested
from thunder_core.tracing.extension.lookaside import Lookaside
from thunder_core.tracing.ir.retrace import (
    HidesNumbers,
    NeedsDrawingFunction,
    NeedsNumbers,
    NeedsPlainKeys,
    NeedsTexts,
    ReadsAssignment,
    ReadsCondition,
    Retrace,
    UnrollsLoop,
    UsesTorchFunc,
)


@dataclass(frozen=True)
class RunOptions:
    """The options of a tracing run: settings of the caller, and results of earlier runs of the same function.

    Settings of the caller:

    - `device`: the function is traced as if its model and arguments were on this device. If `moves_from` is set, only
      the tensors on the device `moves_from` are assumed to move.
    - `evaluates_tensor_values`: the function may read values of tensors, and each later call checks them.
    - `may_evaluate_tensor_values`: if a run needs the value of a tensor, a later run may set
      `evaluates_tensor_values`.
    - `symbolic`: which numbers and sizes are symbolic instead of constant.
    - `functional`: the function must read only its arguments, functions, classes and modules. Any other read is a sharp
      edge, and is not guarded.
    - `sharp_edges`: the policy for sharp edges.
    - `nested`: the callback that records a call of a compiled function as one bound symbol.
    - `lookasides`: the user's functions that are called in place of other functions.
    - `differs_from_eager`: the trace may compute other values than eager PyTorch, so its errors are raised without
      a comparison with eager PyTorch.
    - `eager_functions`: the callback that records a function as one bound symbol, which runs in eager PyTorch, if the
      function contains one of the source lines `eager_functions.lines`.
    - `lines_that_raised`: source lines at which an operation raised an error in an earlier call, because of the values
      of tensors.
    - `interprets_autograd_functions`: the forward of a `torch.autograd.Function` is interpreted, even if its inputs
      require gradients.
    - `leaves_cache_fills_to_eager`: if tracing cannot put a new value into a `functools.lru_cache`, the whole call runs
      in eager PyTorch.
    - `leaves_to_eager`: calls that no trace can represent run in eager PyTorch.
    - `attempts`: the recording of the attempts to trace the call.

    Results of earlier runs:

    - `detours`: the calls of `torch.compiler.is_compiling()` that return True, so that a library takes a code path that
      reads no values of tensors.
    - `derivatives_read_numbers`: derivatives read symbolic numbers as values, because the function calls `backward`.
    - `evaluates_strings_at_once`: strings with the text of a tensor or a symbolic number are evaluated when they are
      created, instead of when they are used.
    - `draws_are_constant`: the random numbers that Python code draws are constants, which each call checks.
    - `drawing_functions`: the code objects of functions that draw a random array and read its values. The prologue
      calls these functions, because a trace would be valid only for the drawn values.
    - `plain_keys`: the code objects of functions under `functools.lru_cache` whose arguments are constants.
    - `reads_assignment_indices`: the indices from SciPy's `linear_sum_assignment` are read as values.
    - `derives_by_torch_func`: `grad`, `vjp` and `jvp` in the program are those of `torch.func`.
    - `unrolled_loops`: loops whose iterations are all recorded, each with the reason.
    - `read_conditions`: branches on tensors whose conditions are read, because the two arms cannot both be recorded.
    """

    device: torch.device | None = None
    moves_from: torch.device | None = None
    may_evaluate_tensor_values: bool = False
    evaluates_tensor_values: bool = False
    symbolic: Symbolic = CONSTANT
    functional: bool = False
    sharp_edges: SharpEdges = "allow"
    nested: Nested | None = None
    lookasides: Sequence[Lookaside] = ()
    differs_from_eager: bool = False
    eager_functions: EagerFunctionCalls | None = None
    interprets_autograd_functions: bool = False
    leaves_cache_fills_to_eager: bool = False
    leaves_to_eager: bool = False
    lines_that_raised: frozenset[SourceLine] = frozenset()
    attempts: CallAttempts | None = field(default=None, compare=False)
    detours: Detours = field(default_factory=Detours)
    derivatives_read_numbers: bool = False
    evaluates_strings_at_once: bool = False
    draws_are_constant: bool = False
    drawing_functions: frozenset[CodeType] = frozenset()
    plain_keys: frozenset[CodeType] = frozenset()
    reads_assignment_indices: bool = False
    derives_by_torch_func: bool = False
    unrolled_loops: Mapping[tuple[CodeType, int], str] = field(default_factory=dict)
    read_conditions: frozenset[ReadsCondition] = frozenset()

    @property
    def may_read_values(self) -> bool:
        """Whether this run or a later run may evaluate the values of tensors."""
        return self.evaluates_tensor_values or self.may_evaluate_tensor_values

    @property
    def leaves_threads_to_eager(self) -> bool:
        """Whether eager PyTorch makes the calls of programs that start threads."""
        return self.leaves_to_eager and self.sharp_edges == "allow"

    @property
    def watches_native_code(self) -> bool:
        """Whether the run reports the user's code that C code calls, because Thunder's interpreter does not run it.

        Such code is a sharp edge.
        """
        return self.sharp_edges != "allow"

    @property
    def description(self) -> str:
        """The symbolic values and the consequences of earlier runs, in words."""
        parts = {
            f"{len(self.detours.sites)} calls of torch.compiler.is_compiling() return True": self.detours.sites,
            "values of tensors are read": self.evaluates_tensor_values and self.symbolic.sizes,
            "derivatives read numbers": self.derivatives_read_numbers,
            "strings with values are evaluated at once": self.evaluates_strings_at_once,
            "random numbers are constant": self.draws_are_constant,
            f"{len(self.drawing_functions)} functions draw random arrays before the program": self.drawing_functions,
            f"{len(self.plain_keys)} functions under functools.lru_cache get constants": self.plain_keys,
            "the indices of linear_sum_assignment are read": self.reads_assignment_indices,
            "derivatives are those of torch.func": self.derives_by_torch_func,
            f"{len(self.unrolled_loops)} loops are unrolled": self.unrolled_loops,
            f"{len(self.read_conditions)} conditions are read": self.read_conditions,
        }
        return ", ".join([self.symbolic.description, *(text for text, applies in parts.items() if applies)])

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

        A detour around the value is tried first. If no detour is left and `may_evaluate_tensor_values` is set, values
        are evaluated.
        """
        next_detours = self.detours.further()
        if next_detours is not None:
            return replace(self, detours=next_detours)
        if self.evaluates_tensor_values or not self.may_evaluate_tensor_values:
            return self
        return replace(self, evaluates_tensor_values=True, detours=Detours())

    def for_probe(self, **changes: Any) -> RunOptions:
        """Return the options of a separate run that traces only a `torch.autograd.Function`, with these changes.

        All options that are not listed here have their defaults.
        """
        return RunOptions(
            device=self.device,
            moves_from=self.moves_from,
            nested=self.nested,
            lookasides=self.lookasides,
            drawing_functions=self.drawing_functions,
            plain_keys=self.plain_keys,
            reads_assignment_indices=self.reads_assignment_indices,
            derives_by_torch_func=self.derives_by_torch_func,
            unrolled_loops=self.unrolled_loops,
            read_conditions=self.read_conditions,
            **changes,
        )


DEFAULTS = RunOptions()


# For each reason that changes the options of the next run, the function that returns the changed options.
CHANGED_OPTIONS: dict[type, Callable[[RunOptions, Any], dict[str, Any]]] = {
    HidesNumbers: lambda options, reason: {"derivatives_read_numbers": True},
    # If no other number may be symbolic, the symbolic numbers are random draws, so the draws become constants.
    # Otherwise, the options stay equal, and the compiler traces the call again with constant numbers.
    NeedsNumbers: lambda options, reason: {"draws_are_constant": not options.symbolic.may_have_symbols},
    NeedsTexts: lambda options, reason: {"evaluates_strings_at_once": True},
    NeedsDrawingFunction: lambda options, reason: {"drawing_functions": options.drawing_functions | {reason.code}},
    NeedsPlainKeys: lambda options, reason: {"plain_keys": options.plain_keys | {reason.code}},
    ReadsAssignment: lambda options, reason: {"reads_assignment_indices": True},
    UsesTorchFunc: lambda options, reason: {"derives_by_torch_func": True},
    UnrollsLoop: lambda options, reason: {
        "unrolled_loops": {**options.unrolled_loops, (reason.code, reason.offset): reason.reason}
    },
    ReadsCondition: lambda options, reason: {"read_conditions": options.read_conditions | {reason}},
}
