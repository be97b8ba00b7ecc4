"""The interface of a run for lookasides: its attributes, without an import of its class."""

from __future__ import annotations

from collections.abc import Mapping
from types import CodeType
from typing import Any, NoReturn, Protocol

from thunder_core.foundation.errors import SourceLine
from thunder_core.frontend.acquire.applied_functions import AppliedFunctions, ReplacedFunctions
from thunder_core.frontend.acquire.backward_hooks import BackwardHooks
from thunder_core.frontend.acquire.detours import Detours
from thunder_core.frontend.acquire.numbers import OutsideNumbers
from thunder_core.frontend.acquire.outside.classes import Classes
from thunder_core.frontend.acquire.outside.draws import ProgramDraws
from thunder_core.frontend.acquire.outside.native_reads import NativeReads
from thunder_core.frontend.acquire.outside.recording import Recording
from thunder_core.frontend.acquire.run.program_state import (
    CallState,
    NotedEdges,
    ProcessBefore,
    RunningModules,
    TraceNotes,
)
from thunder_core.frontend.acquire.saved_tensors_hooks import SavedTensorsHooks
from thunder_core.frontend.acquire.settings import Settings
from thunder_core.tracing.ir.retrace import ReadsCondition, Retrace, RetraceReason


class Nested(Protocol):
    """Calls the compiled functions that a program does not trace through."""

    def __call__(self, run: TracedRun, /, compiled: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the compiled function as one bound symbol of the trace."""

    def records_as_one_bound_symbol(self, compiled: Any) -> bool:
        """Whether a compiled function is called as one bound symbol."""


class EagerFunctionCalls(Protocol):
    """Calls the functions that contain some lines in eager PyTorch."""

    @property
    def lines(self) -> frozenset[SourceLine]:
        """The lines that read tensor values which differ too often to trace each of them."""

    def __call__(self, run: TracedRun, /, function: object, *args: Any, **kwargs: Any) -> Any:
        """Record the call of a function as one bound symbol, and return its result."""


class LibraryCode(Protocol):
    """Distinguishes PyTorch's code from other code."""

    def is_library(self, code: CodeType) -> bool:
        """Whether code belongs to PyTorch."""


class ProgramTexts(Protocol):
    """The strings of a program that depend on symbolic numbers or on tensors."""

    def require_reusable_texts(self) -> None:
        """Raise `Retrace` if the strings of this call may be wrong for a later call."""


class ProgramInputs(Protocol):
    """The traced function or module, and its inputs."""

    subject: Any


class CacheStatistics(Protocol):
    """The statistics of the caches of functions under `functools.lru_cache`."""

    def note_read_of_statistics(self, cached: object) -> None:
        """Note that the program calls `cache_info` of a cached function."""


class TracedOptions(Protocol):
    """The options of a run that lookasides read (`acquire.run.options.RunOptions`)."""

    @property
    def detours(self) -> Detours:
        """The calls of `torch.compiler.is_compiling()` that return True."""

    @property
    def nested(self) -> Nested | None:
        """The callback that records a call of a compiled function as one bound symbol."""

    @property
    def may_read_values(self) -> bool:
        """Whether this run or a later run may evaluate the values of tensors."""

    @property
    def unrolled_loops(self) -> Mapping[tuple[CodeType, int], str]:
        """The loops whose iterations are all recorded, each with the reason."""

    @property
    def read_conditions(self) -> frozenset[ReadsCondition]:
        """The branches on tensors whose conditions are read."""

    @property
    def interprets_autograd_functions(self) -> bool:
        """Whether the forward of a `torch.autograd.Function` is interpreted."""

    @property
    def reads_assignment_indices(self) -> bool:
        """Whether the indices from `linear_sum_assignment` are read as values."""

    @property
    def derives_by_torch_func(self) -> bool:
        """Whether `grad`, `vjp` and `jvp` in the program are those of `torch.func`."""


class TracedRun(Recording, Protocol):
    """One run of the program under the interpreter (`acquire.run.run.Run`), with all its parts."""

    options: TracedOptions
    inputs: ProgramInputs
    process_before: ProcessBefore
    code_origins: LibraryCode
    modules: RunningModules
    edges: NotedEdges
    notes: TraceNotes
    calls: CallState
    settings: Settings
    classes: Classes
    native_reads: NativeReads
    numbers: OutsideNumbers
    texts: ProgramTexts
    draws: ProgramDraws
    context_variables: Any
    cached_calls: CacheStatistics
    functions: AppliedFunctions
    backward_hooks: BackwardHooks
    saved_tensors_hooks: SavedTensorsHooks
    replacements: ReplacedFunctions

    def retrace(self, reason: RetraceReason) -> Retrace:
        """Return the exception that requests another trace. The request is stored, because the program may catch it."""

    def leave_to_eager(self, what: str, fix: str, where: SourceLine | None = None) -> NoReturn:
        """Raise the request that eager PyTorch makes this call, or `CannotReplay` if eager PyTorch is not allowed."""

    def class_of(self, value: object) -> type:
        """Return an operand's class in eager PyTorch."""

    def before_native(self, function: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Note the effects of a C function; return the result if the call is made here, otherwise `NOT_TAKEN`."""
