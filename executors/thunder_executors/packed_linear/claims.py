"""Base classes of executors that replace operations on the CPU by C++ kernels that are measured to be faster."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Generic, Protocol, Self, TypeVar

import torch

from thunder_core.backend.claiming.executor import Executor
from thunder_core.backend.claiming.kernel_times import NOT_MEASURED, KernelTimes
from thunder_core.backend.claiming.tuning import TuningBudget
from thunder_core.backend.fusion.fuse import Refusal, region_bound_symbol
from thunder_core.backend.fusion.machine_code import MachineCode
from thunder_core.backend.fusion.region import RegionOccurrence, region_occurrence
from thunder_core.foundation.errors import CompilerFailed, OutOfDisk
from thunder_core.tracing.analysis.grad_mode import may_be_recorded, tracked_by_autograd
from thunder_core.tracing.extension.requirement import CxxCompiler
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol, Symbol
from thunder_core.tracing.ir.trace import RefusedOperations, Trace
from thunder_executors.inductor.building.kernel_library import KernelLibrary
from thunder_executors.inductor.building.machine import processors
from thunder_executors.packed_linear.kernel import missing_processor

UNMEASURED = Refusal(NOT_MEASURED)


class KernelOperation(Protocol):
    """An operation that a kernel could compute: its title in reports, and its result."""

    @property
    def title(self) -> str:
        """The operation as text, with its sizes."""

    @property
    def result(self) -> TensorProxy:
        """The tensor that the operation returns."""


T = TypeVar("T", bound=KernelOperation)


@dataclass(frozen=True)
class Candidate(Generic[T]):
    """Bound symbols of a trace that a kernel could replace: the operation that they compute, and their indices.

    The kernel runs at the first index, or at the last index if `last` is True.
    """

    operation: T
    occurrence: RegionOccurrence
    indices: tuple[int, ...]
    last: bool = False

    @property
    def digest(self) -> str:
        """The digest of the region, which is the same for equal operations."""
        return self.occurrence.region.digest

    @property
    def at(self) -> int:
        """The index at which the kernel runs."""
        return self.indices[-1 if self.last else 0]


@dataclass(frozen=True)
class CpuExecutor(Executor):
    """Claims inference operations on the CPU for C++ kernels.

    If `measures` is set, a kernel must be measured faster.
    """

    symbolic_sizes: ClassVar[bool] = True
    fuses_regions: ClassVar[bool] = True  # no backward can be derived from machine code
    after: ClassVar[tuple[str, ...]] = ("sdpa", "triton", "joined", "nvfuser")
    before: ClassVar[tuple[str, ...]] = ("inductor",)
    off_cpu: ClassVar[str] = "it computes on the CPU only"
    name: str = ""
    measures: bool = True

    def without_measuring(self) -> Self:
        """Return this executor without measurements: it claims each operation that a kernel supports."""
        return replace(self, measures=False)

    def missing_on(self, device: torch.device) -> str | None:
        """Return the reason why programs on a device are not supported; None on a suitable CPU."""
        return self.missing() if device.type == "cpu" else self.off_cpu

    def missing_for(self, target: str) -> str | None:  # noqa: ARG002
        """Return the reason why programs for a GPU are not supported."""
        return self.off_cpu

    def claim(self, bsym: BoundSymbol) -> BoundSymbol | None:  # noqa: ARG002
        """Return None: `claim_all` measures all operations of a program together."""
        return None


@dataclass(frozen=True)
class KernelExecutor(CpuExecutor, Generic[T]):
    """Claims operations on the CPU that autograd does not record, for one kernel that is measured to be faster.

    `operations` are the names of the operations. `in_words` says what PyTorch does where the kernel is not faster. The
    kernel runs at the last bound symbol that it replaces if `runs_last` is True, and otherwise at the first.
    """

    operations: ClassVar[Collection[str]]
    in_words: ClassVar[str] = "multiplies"
    runs_last: ClassVar[bool] = False

    def missing(self) -> str | None:
        """Return the missing requirement (AVX2 and FMA, or a C++ compiler); None if this machine has both."""
        return missing_processor() or CxxCompiler().missing()

    def claim_all(self, trace: Trace) -> Trace:
        """Return the trace with the kernel in place of each operation for which it is faster."""
        recorded = may_be_recorded(trace, tracked_by_autograd(trace))
        candidates = self.candidates_in(trace, recorded)
        budget = TuningBudget()
        if not candidates or (self.measures and budget.is_off) or self.missing():
            return trace
        choices: dict[str, MachineCode | Refusal] = {}
        for index, candidate in self.extend_candidates(trace, candidates, recorded).items():
            if isinstance(self.choice_once(candidate, budget, choices), MachineCode):
                candidates[index] = candidate
        chosen = {candidate.digest: self.choice_once(candidate, budget, choices) for candidate in candidates.values()}
        bsyms, refused = replace_candidates(trace, candidates.values(), chosen, self.name)
        return trace.having(bsyms, made_by=f"claim by {self.name}", refused=(*trace.refused, *refused))

    def can_claim(self, bsym: BoundSymbol) -> bool:
        """Whether the kernel could compute a bound symbol."""
        return self.operation_in(bsym) is not None

    def operation_in(self, bsym: BoundSymbol) -> T | None:
        """Return the operation of an unclaimed bound symbol of a program, if the kernel supports it."""
        if bsym.executor or bsym.symbol.name not in self.operations or bsym.mutates or not bsym.is_resolved:
            return None
        return self.operation_of(bsym)

    @abstractmethod
    def operation_of(self, bsym: BoundSymbol) -> T | None:
        """Return the operation that a bound symbol of `operations` computes; None if the kernel does not support it."""

    def candidates_in(self, trace: Trace, recorded: Sequence[bool]) -> dict[int, Candidate[T]]:
        """Return the candidates of a trace by index, except operations that autograd records (`recorded`)."""
        operations = (
            (index, self.operation_in(bsym)) for index, bsym in enumerate(trace.bound_symbols) if not recorded[index]
        )
        return {
            index: self.candidate_at(trace, operation, index)
            for index, operation in operations
            if operation is not None
        }

    def candidate_at(self, trace: Trace, operation: T, *indices: int) -> Candidate[T]:
        """Return the candidate for an operation, whose region has the bound symbols at these indices."""
        occurrence = region_occurrence([trace.bound_symbols[index] for index in indices])
        (result,) = (name for name, proxy in occurrence.defined.items() if proxy.name == operation.result.name)
        return Candidate(operation, occurrence.returning({result}), indices, self.runs_last)

    def extend_candidates(
        self,
        trace: Trace,  # noqa: ARG002
        candidates: Mapping[int, Candidate[T]],  # noqa: ARG002
        recorded: Sequence[bool],  # noqa: ARG002
    ) -> dict[int, Candidate[T]]:
        """Return candidates that also cover neighbouring bound symbols, by the index of the candidate to replace."""
        return {}

    def choice_once(
        self, candidate: Candidate[T], budget: TuningBudget, choices: dict[str, MachineCode | Refusal]
    ) -> MachineCode | Refusal:
        """Return the choice for a candidate; equal candidates share one choice, in `choices`."""
        if candidate.digest not in choices:
            choices[candidate.digest] = self.choice(candidate.operation, candidate.occurrence, budget)
        return choices[candidate.digest]

    def choice(self, operation: T, occurrence: RegionOccurrence, budget: TuningBudget) -> MachineCode | Refusal:
        """Return the kernel for an operation, or the reason why PyTorch runs the operation."""
        try:
            times = self.times_of(operation, budget) if self.measures else None
            if self.measures and times is None:
                return UNMEASURED
            if times is not None and (refusal := self.refusal_of(operation, times, budget)) is not None:
                return refusal
            return self.machine_code(operation, occurrence, times)
        except (CompilerFailed, OutOfDisk) as error:
            return Refusal(error.what)

    @abstractmethod
    def times_of(self, operation: T, budget: TuningBudget) -> KernelTimes | None:
        """Return the times of an operation; None if the remaining budget is too small."""

    def refusal_of(self, operation: T, times: KernelTimes, budget: TuningBudget) -> Refusal | None:  # noqa: ARG002
        """Return the reason why another implementation runs the operation; None if the kernel is faster."""
        if times.is_kernel_better:
            return None
        return Refusal(f"PyTorch {self.in_words} {operation.title}: {times}", lasting=True)

    def machine_code(self, operation: T, occurrence: RegionOccurrence, times: KernelTimes | None) -> MachineCode:
        """Return the kernel for an operation; raise `CompilerFailed` or `OutOfDisk`."""
        choice = "" if times is None else f"{operation.title}: {times}"
        library = self.library_of(operation).content
        return MachineCode(self.region_text(operation, occurrence), library, processors()[1], choice=choice)

    @abstractmethod
    def region_text(self, operation: T, occurrence: RegionOccurrence) -> str:
        """Return the source of a module that defines the region, which calls the kernel."""

    @abstractmethod
    def library_of(self, operation: T) -> KernelLibrary:
        """Return the library of the kernel for an operation."""


def replace_candidates(
    trace: Trace, candidates: Iterable[Candidate[T]], chosen: Mapping[str, MachineCode | Refusal], executor: str
) -> tuple[list[BoundSymbol], list[RefusedOperations]]:
    """Return the bound symbols with chosen candidates replaced by kernels, and records of the refused candidates."""
    symbols = symbols_of(chosen, executor.replace("-", "_"))
    replacements: dict[int, list[BoundSymbol]] = {}
    refused: Counter[Refusal] = Counter()
    for candidate in candidates:
        choice = chosen[candidate.digest]
        if isinstance(choice, Refusal):
            refused[choice] += 1
        else:
            replacements |= {index: [] for index in candidate.indices}
            replacements[candidate.at] = [
                region_bound_symbol(candidate.occurrence, symbols[candidate.digest], executor)
            ]
    new = [new for index, bsym in enumerate(trace.bound_symbols) for new in replacements.get(index, [bsym])]
    return new, [refused_operations(executor, refusal, count) for refusal, count in refused.items()]


def symbols_of(choices: Mapping[str, MachineCode | Refusal], prefix: str) -> dict[str, Symbol]:
    """Return the symbols of the kernels, numbered in order of occurrence."""
    kernels = {digest: choice for digest, choice in choices.items() if isinstance(choice, MachineCode)}
    names = {digest: f"{prefix}_{number}" for number, digest in enumerate(kernels)}
    return {
        digest: Symbol(names[digest], code.function(names[digest]), empties=True) for digest, code in kernels.items()
    }


def refused_operations(executor: str, refusal: Refusal, count: int) -> RefusedOperations:
    """Return a record of `count` refused operations, which says whether a measurement or the compiler refused them."""
    by_measurement = refusal.lasting or refusal == UNMEASURED
    return RefusedOperations(executor, refusal.reason, count, refusal.lasting, by_measurement=by_measurement)
