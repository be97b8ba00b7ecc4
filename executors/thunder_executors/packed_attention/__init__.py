"""Attention on the CPU in float32: Thunder's own kernel for inference, where a measurement shows that it is faster.

The kernel packs a panel of queries, multiplies the panel by keys, and multiplies the weights by values. Keys and values
are read in place. Scores of a panel stay in the cache, and scores that a causal mask hides are not computed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from thunder_core.backend.claiming.tuning import TuningBudget
from thunder_core.backend.fusion.region import RegionOccurrence
from thunder_core.tracing.analysis.attention_arguments import ATTENTION
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace
from thunder_executors.inductor.building.kernel_library import KernelLibrary
from thunder_executors.packed_attention.attention import Attention, attention_of, region_text
from thunder_executors.packed_attention.kernel import ATTENTION_LIBRARY, EXECUTOR_NAME
from thunder_executors.packed_attention.measurement import Times, times_of
from thunder_executors.packed_attention.repeats import repeated_attention
from thunder_executors.packed_linear.claims import Candidate, KernelExecutor


@dataclass(frozen=True)
class PackedAttention(KernelExecutor[Attention]):
    """Claims attention on the CPU in float32, whose result autograd does not record."""

    operations: ClassVar[Collection[str]] = frozenset({ATTENTION})
    in_words: ClassVar[str] = "computes attention of"
    runs_last: ClassVar[bool] = True
    name: str = EXECUTOR_NAME

    @property
    def claims(self) -> str:
        """The claimed operation: attention on the CPU."""
        return "attention on the CPU in float32, for inference, where its kernel is measured to be faster"

    def operation_of(self, bsym: BoundSymbol) -> Attention | None:
        """Return the attention, if the kernel supports it."""
        return attention_of(bsym)

    def candidates_in(self, trace: Trace, recorded: Sequence[bool]) -> dict[int, Candidate[Attention]]:
        """Return the attention operations that the kernel supports and autograd does not record, by index."""
        candidates = super().candidates_in(trace, recorded)
        return {index: candidate for index, candidate in candidates.items() if not candidate.occurrence.numbers}

    def extend_candidates(
        self, trace: Trace, candidates: Mapping[int, Candidate[Attention]], recorded: Sequence[bool]
    ) -> dict[int, Candidate[Attention]]:
        """Return grouped-query attention in place of attention to repeated keys and values, by index."""
        repeated = repeated_attention(trace, {index: candidates[index].operation for index in candidates})
        return {
            index: self.candidate_at(trace, grouped, *indices, index)
            for index, (grouped, indices) in repeated.items()
            if not any(recorded[repeating] for repeating in indices)
        }

    def times_of(self, operation: Attention, budget: TuningBudget) -> Times | None:
        """Return the times of attention; None if the remaining budget is too small."""
        return times_of(operation, budget)

    def region_text(self, operation: Attention, occurrence: RegionOccurrence) -> str:
        """Return the source of the region that computes attention."""
        return region_text(operation, occurrence)

    def library_of(self, operation: Attention) -> KernelLibrary:  # noqa: ARG002 - one kernel for all attention
        """Return the library of the kernel."""
        return ATTENTION_LIBRARY


EXECUTOR = PackedAttention()
