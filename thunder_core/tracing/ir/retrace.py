"""The request to trace a program again with other options, and the reasons for such a request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import CodeType

from thunder_core.foundation.errors import SourceLine
from thunder_core.tracing.ir.trace import Trace


@dataclass(frozen=True)
class MeetsSymbol:
    """A run that tests whether the program needs only constants has used a symbolic number or size.

    The run ends there, unless the program catches the request. In that case, `is_complete` is True.
    """

    is_complete: bool = False


@dataclass(frozen=True)
class DecidesForOtherCalls:
    """A decision based on sizes does not hold for the call. `violated` are the names of sizes in such decisions."""

    violated: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ReadsStrides:
    """The program reads strides of computed tensors, which differ for sizes of one."""


@dataclass(frozen=True)
class LosesKernels:
    """An executor refuses bound symbols only because sizes are symbolic. `refusal` is its name and its reason."""

    refusal: str


@dataclass(frozen=True)
class NeedsNumbers:
    """C code would receive symbolic numbers inside a container, so it needs their values."""


@dataclass(frozen=True)
class HidesNumbers:
    """The program differentiates operations with numbers that the trace lacks, so it is recorded with their values."""


@dataclass(frozen=True)
class NeedsTexts:
    """The program changes how tensors are printed, so its texts must be read when they are made."""


@dataclass(frozen=True)
class NeedsDrawingFunction:
    """A function read the values of random arrays that it drew, so the prologue must call it; `code` is its code."""

    code: CodeType


@dataclass(frozen=True)
class ReadsAssignment:
    """The program reads the arrays that SciPy's `linear_sum_assignment` returns other than as tensors."""


@dataclass(frozen=True)
class UnrollsLoop:
    """The iterations of a loop are not calls of one function, for a `reason`.

    The range of the loop is called at an offset of this `code`.
    """

    code: CodeType
    offset: int
    reason: str


@dataclass(frozen=True)
class ReadsCondition:
    """The arms of a branch on a tensor cannot both be recorded. The branch is at an offset of this `code`."""

    code: CodeType
    offset: int


@dataclass(frozen=True)
class FillsCache:
    """A function under `functools.lru_cache` computes a value that eager PyTorch keeps, so eager makes the call."""


@dataclass(frozen=True)
class RunsInEager:
    """The program does something at the line `where` that no trace can represent, so eager PyTorch makes the call.

    Under the guards of the `prologue`, which is set when tracing ends, the program does this at each call. `observed`
    has the numbers and sizes from outside in this call, by path.
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
    | ReadsAssignment
    | UnrollsLoop
    | ReadsCondition
    | FillsCache
    | RunsInEager
)


class Retrace(BaseException):
    """A request to trace the program again with other options, for a `reason`.

    The class is no `Exception`, so that the program that is being traced does not catch it by `except Exception`.
    """

    def __init__(self, reason: RetraceReason) -> None:
        super().__init__(reason)
        self.reason = reason
