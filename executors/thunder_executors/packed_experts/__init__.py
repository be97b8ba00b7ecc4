"""Mixtures of experts on the CPU: Thunder's own matrix product of each expert, where it is measured to be faster.

One call of the kernel multiplies the rows of all experts, in float32, by the kernel of linear layers. Weights are read
in place, and only those of experts that have rows.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from thunder_core.backend.claiming.tuning import TuningBudget
from thunder_core.backend.fusion.region import RegionOccurrence
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_executors.inductor.building.kernel_library import KernelLibrary
from thunder_executors.packed_experts.experts import OPERATION, ExpertProducts, products_of, region_text
from thunder_executors.packed_experts.kernel import EXECUTOR_NAME, EXPERTS_LIBRARY
from thunder_executors.packed_experts.measurement import Times, times_of
from thunder_executors.packed_linear.claims import KernelExecutor


@dataclass(frozen=True)
class PackedExperts(KernelExecutor[ExpertProducts]):
    """Claims products of experts on the CPU in float32, whose results autograd does not record."""

    operations: ClassVar[Collection[str]] = frozenset({OPERATION})
    name: str = EXECUTOR_NAME

    @property
    def claims(self) -> str:
        """The claimed operation: matrix products of groups of rows on the CPU."""
        return "products of experts on the CPU in float32, for inference, where its kernel is measured to be faster"

    def operation_of(self, bsym: BoundSymbol) -> ExpertProducts | None:
        """Return the products of experts, if the kernel supports them."""
        return products_of(bsym)

    def times_of(self, operation: ExpertProducts, budget: TuningBudget) -> Times | None:
        """Return the times of products; None if the remaining budget is too small."""
        return times_of(operation, budget)

    def region_text(self, operation: ExpertProducts, occurrence: RegionOccurrence) -> str:
        """Return the source of the region that multiplies."""
        return region_text(operation, occurrence)

    def library_of(self, operation: ExpertProducts) -> KernelLibrary:  # noqa: ARG002 - one kernel for all products
        """Return the library of the kernel."""
        return EXPERTS_LIBRARY


EXECUTOR = PackedExperts()
