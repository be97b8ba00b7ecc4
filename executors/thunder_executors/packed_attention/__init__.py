"""Attention on the CPU in float32: Thunder's own kernel for inference, where a measurement shows that it is faster.

The kernel packs a panel of queries, multiplies the panel by keys, and multiplies the weights by values. Keys and values
are read in place. Scores of a panel stay in the cache, and scores that a causal mask hides are not computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from thunder_core.backend.claiming.kernel_times import KernelTimes
from thunder_core.backend.claiming.tuning import TuningBudget
from thunder_core.backend.fusion.fuse import Refusal
from thunder_core.backend.fusion.machine_code import MachineCode
from thunder_core.backend.fusion.region import RegionOccurrence, region_occurrence
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace
from thunder_executors.inductor.building.machine import processors
from thunder_executors.packed_attention.attention import Attention, attention_of, region_text
from thunder_executors.packed_attention.kernel import ATTENTION_LIBRARY, EXECUTOR_NAME
from thunder_executors.packed_attention.measurement import Times, times_of
from thunder_executors.packed_attention.repeats import repeated_attention
from thunder_executors.packed_linear.claims import Candidate, KernelExecutor
from thunder_executors.sdpa import ATTENTION


@dataclass(frozen=True)
class PackedAttention(KernelExecutor[Attention]):
    """Claims attention on the CPU in float32, whose result autograd does not record."""

    name: str = EXECUTOR_NAME

    @property
    def claims(self) -> str:
        """The claimed operation: attention on the CPU."""
        return "attention on the CPU in float32, for inference, where its kernel is measured to be faster"

    def can_claim(self, bsym: BoundSymbol) -> bool:
        """Whether the kernel could compute a bound symbol."""
        return attention_in(bsym) is not None

    def candidates_in(self, trace: Trace, recorded: Sequence[bool]) -> dict[int, Candidate[Attention]]:
        """Return the attention operations that the kernel supports and autograd does not record, by index."""
        attentions = (
            (index, attention_in(bsym)) for index, bsym in enumerate(trace.bound_symbols) if not recorded[index]
        )
        candidates = {
            index: candidate_at(trace, attention, index) for index, attention in attentions if attention is not None
        }
        return {index: candidate for index, candidate in candidates.items() if not candidate.occurrence.numbers}

    def extend_candidates(
        self, trace: Trace, candidates: Mapping[int, Candidate[Attention]], recorded: Sequence[bool]
    ) -> dict[int, Candidate[Attention]]:
        """Return grouped-query attention in place of attention to repeated keys and values, by index."""
        repeated = repeated_attention(trace, {index: candidates[index].operation for index in candidates})
        return {
            index: candidate_at(trace, grouped, *indices, index)
            for index, (grouped, indices) in repeated.items()
            if not any(recorded[repeating] for repeating in indices)
        }

    def times_of(self, operation: Attention, budget: TuningBudget) -> Times | None:
        """Return the times of attention; None if the remaining budget is too small."""
        return times_of(operation, budget)

    def refusal_of(self, operation: Attention, times: KernelTimes, budget: TuningBudget) -> Refusal | None:  # noqa: ARG002
        """Return the reason why PyTorch computes attention; None if the kernel is faster."""
        if times.is_kernel_better:
            return None
        return Refusal(f"PyTorch computes attention of {operation.title}: {times}", lasting=True)

    def machine_code(
        self, operation: Attention, occurrence: RegionOccurrence, times: KernelTimes | None
    ) -> MachineCode:
        """Return the kernel for attention; raise `CompilerFailed` or `OutOfDisk`."""
        choice = "" if times is None else f"{operation.title}: {times}"
        library = ATTENTION_LIBRARY.content
        return MachineCode(region_text(operation, occurrence), library, processors()[1], choice=choice)


def attention_in(bsym: BoundSymbol) -> Attention | None:
    """Return the attention of an unclaimed bound symbol of a program, if the kernel supports it."""
    if bsym.executor or bsym.symbol.name != ATTENTION or bsym.mutates or not bsym.is_resolved:
        return None
    return attention_of(bsym)


def candidate_at(trace: Trace, attention: Attention, *indices: int) -> Candidate[Attention]:
    """Return the candidate for attention at the last index; its region has the bound symbols at all indices."""
    occurrence = region_occurrence([trace.bound_symbols[index] for index in indices])
    (result,) = (name for name, proxy in occurrence.defined.items() if proxy.name == attention.result.name)
    return Candidate(attention, occurrence.returning({result}), indices, last=True)


EXECUTOR = PackedAttention()
