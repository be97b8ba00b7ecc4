"""The interface of a run for lookasides: its attributes, without an import of its class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from thunder_core.frontend.acquire.saved_tensors_hooks import SavedTensorsHooks
from thunder_core.frontend.acquire.settings import Settings
from thunder_core.frontend.acquire.works import TracedWork
from thunder_core.tracing.ir.attention import FlexAttention
from thunder_core.tracing.ir.proxy import Proxy
from thunder_core.tracing.ir.retrace import ReadsCondition, Retrace, RetraceReason


class Nested(Protocol):
    """Calls the compiled functions that a program does not trace through."""

    def __call__(self, run: TracedRun, /, compiled: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the compiled function as one bound symbol of the trace."""

    def stays(self, compiled: Any) -> bool:
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


class CacheStatistics(Protocol):
    """The statistics of the caches of functions under `functools.lru_cache`."""

    def note_read_of_statistics(self, cached: object) -> None:
        """Note that the program calls `cache_info` of a cached function."""


class TracedRun(Recording, Protocol):
    """One run of the program under the interpreter (`acquire.run.run.Run`), with all its parts."""

    settings: Settings
    classes: Classes
    detours: Detours
    numbers: OutsideNumbers
    draws: ProgramDraws
    unrolled_loops: Mapping[tuple[CodeType, int], str]
    may_read_values: bool
    read_conditions: frozenset[ReadsCondition]
    recorded_arms: list[Any]
    entered_codes: set[CodeType] | None
    code_origins: LibraryCode
    functions: AppliedFunctions
    backward_hooks: BackwardHooks
    cached_calls: CacheStatistics
    saved_tensors_hooks: SavedTensorsHooks
    native_reads: NativeReads
    works: list[TracedWork]
    modules: list[str]
    module_names: Mapping[int, str]
    checkpointed_ranges: list[range]
    kept_operations: dict[str, frozenset[str]]
    attentions: dict[str, FlexAttention]
    seeds: dict[int, int | None]
    script_methods: list[Any]
    asyncio_run_depth: int
    contexts: dict[int, tuple[Any, Proxy]]
    capturing_hooks: dict[int, list[Callable[..., Any]]]
    sharp_edges: dict[str, SourceLine | None]
    loud_edges: set[str]
    started: int  # the result of `time.time_ns()` at the start
    streams: tuple[Any, ...]
    log_handlers: list[Any]
    printed_streams: list[Any]
    warning_filters: Any
    interprets_autograd_functions: bool
    reads_assignment_indices: bool
    texts: ProgramTexts
    context_variables: Any
    nested: Nested | None
    replacements: ReplacedFunctions

    def retrace(self, reason: RetraceReason) -> Retrace:
        """Return the exception that requests another trace. The request is stored, because the program may catch it."""

    def leave_to_eager(self, what: str, fix: str, where: SourceLine | None = None) -> NoReturn:
        """Raise the request that eager PyTorch makes this call, or `CannotReplay` if eager PyTorch is not allowed."""

    def class_of(self, value: object) -> type:
        """Return an operand's class in eager PyTorch."""

    def before_native(self, function: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Note the effects of a C function; return the result if the call is made here, otherwise `NOT_TAKEN`."""
