"""The request to trace a program again with other options, and the reasons for such a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from thunder_core.foundation.errors import SourceLine
from thunder_core.tracing.ir.trace import Trace


@dataclass(frozen=True)
class MeetsSymbol:
    """A trial run, which tests whether a program with constants is enough, has used a symbolic number or size.

    The trial run ends at this point. `is_complete` is True if the program caught the request, so that the run ended
    normally.
    """

    is_complete: bool = False


@dataclass(frozen=True)
class DecidesForOtherCalls:
    """A decision about sizes does not hold for this call. `violated` are the names of the sizes in such decisions."""

    violated: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ReadsStrides:
    """The program reads strides of computed tensors, which differ for sizes of 1."""


@dataclass(frozen=True)
class LosesKernels:
    """An executor refuses bound symbols only because sizes are symbolic. `refusal` has its name and the reason."""

    refusal: str


@dataclass(frozen=True)
class NeedsNumbers:
    """C code would receive a container of symbolic numbers, so the numbers must be constants."""


@dataclass(frozen=True)
class HidesNumbers:
    """The program differentiates operations with numbers that the trace lacks, so the numbers must be constants."""


@dataclass(frozen=True)
class NeedsTexts:
    """The program changes how tensors are printed, so the text of a tensor must be read when it is created."""


@dataclass(frozen=True)
class NeedsDrawingFunction:
    """A function read the values of random arrays that it drew, so the prologue must call it; `code` is its code."""

    code: CodeType


@dataclass(frozen=True)
class NeedsPlainKeys:
    """A function under `functools.lru_cache` must be called with constant numbers; `code` is its code."""

    code: CodeType


@dataclass(frozen=True)
class ReadsAssignment:
    """The program uses the arrays from SciPy's `linear_sum_assignment` in another way than as tensors."""


@dataclass(frozen=True)
class UsesTorchFunc:
    """A derivative of the program must be taken by PyTorch's function transforms (`torch.func`), for a `reason`."""

    reason: str


@dataclass(frozen=True)
class UnrollsLoop:
    """The iterations of a loop are not calls of one function, for a `reason`.

    The loop calls `range` at the bytecode offset `offset` of `code`.
    """

    code: CodeType
    offset: int
    reason: str


@dataclass(frozen=True)
class ReadsCondition:
    """The two arms of a branch on a tensor cannot be recorded.

    The branch is at the bytecode offset `offset` of `code`.
    """

    code: CodeType
    offset: int


@dataclass(frozen=True)
class FillsCache:
    """A function with `functools.lru_cache` computes a value that eager would cache, so the call runs in eager."""


@dataclass(frozen=True)
class RunsInEager:
    """The program does something at the line `where` that no trace can represent, so the call runs in eager PyTorch.

    All calls that the `prologue` accepts do the same; the prologue is set when tracing ends. `observed` has the numbers
    and sizes that the program read in this call, by path.
    """

    what: str
    fix: str
    where: SourceLine | None
    prologue: Trace | None = None
    observed: Mapping[str, int | float] = field(default_factory=dict)


RetraceReason = (
    MeetsSymbol
    | DecidesForOtherCalls
    | ReadsStrides
    | LosesKernels
    | NeedsNumbers
    | HidesNumbers
    | NeedsTexts
    | NeedsDrawingFunction
    | NeedsPlainKeys
    | ReadsAssignment
    | UsesTorchFunc
    | UnrollsLoop
    | ReadsCondition
    | FillsCache
    | RunsInEager
)


NOT_FOR_THIS_CALL = "a decision based on sizes does not hold for the call"

# For each reason, the function that returns it in words.
WORDS: Mapping[type, Callable[[Any], str]] = {
    MeetsSymbol: lambda reason: "the program uses a number or a size that differs between calls",
    DecidesForOtherCalls: lambda reason: (
        NOT_FOR_THIS_CALL + (f": {', '.join(sorted(reason.violated))}" if reason.violated else "")
    ),
    ReadsStrides: lambda reason: "the program reads strides of computed tensors, which differ for sizes of 1",
    LosesKernels: lambda reason: f"an executor has no kernels for symbolic sizes: {reason.refusal}",
    NeedsNumbers: lambda reason: "C code reads the values of symbolic numbers in a container",
    HidesNumbers: lambda reason: "the program differentiates operations with numbers that the trace lacks",
    NeedsTexts: lambda reason: "the program changes how tensors are printed",
    NeedsDrawingFunction: lambda reason: f"{reason.code.co_qualname} reads the values of random arrays that it draws",
    NeedsPlainKeys: lambda reason: f"functools.lru_cache keeps an object or an effect of {reason.code.co_qualname}",
    ReadsAssignment: lambda reason: "the program reads the result of linear_sum_assignment, and not only as tensors",
    UsesTorchFunc: lambda reason: f"PyTorch's function transforms take the derivatives: {reason.reason}",
    UnrollsLoop: lambda reason: f"the iterations of a loop are not calls of one function: {reason.reason}",
    ReadsCondition: lambda reason: "the two arms of a branch on a tensor cannot both be recorded",
    FillsCache: lambda reason: "eager PyTorch makes the call: a function computes a value for functools.lru_cache",
    RunsInEager: lambda reason: f"eager PyTorch makes the call: {reason.what}",
}


def in_words(reason: RetraceReason) -> str:
    """Return a reason in words."""
    return WORDS[type(reason)](reason)


def line_of(reason: RetraceReason) -> SourceLine | None:
    """Return the source line that a reason names; None if it names none."""
    match reason:
        case RunsInEager(where=where):
            return where
        case UnrollsLoop(code, offset) | ReadsCondition(code, offset):
            lines = (line for start, end, line in code.co_lines() if start <= offset < end)
            line = next(lines, None)
            return None if line is None else SourceLine(code.co_filename, line, code.co_qualname)
    return None


class Retrace(BaseException):
    """A request to trace the program again with other options, for a `reason`.

    The class is no `Exception`, so that `except Exception` in the traced program does not catch it.
    """

    def __init__(self, reason: RetraceReason) -> None:
        super().__init__(reason)
        self.reason = reason
