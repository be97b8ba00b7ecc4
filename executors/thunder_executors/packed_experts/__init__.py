"""Mixtures of experts on the CPU: Thunder's own matrix product of each expert, where it is measured to be faster.

One call of the kernel multiplies the rows of all experts, in float32, by the kernel of linear layers. Weights are read
in place, and only those of experts that have rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from thunder_core.backend.claiming.kernel_times import KernelTimes
from thunder_core.backend.claiming.tuning import TuningBudget
from thunder_core.backend.fusion.fuse import Refusal
from thunder_core.backend.fusion.machine_code import MachineCode
from thunder_core.backend.fusion.region import RegionOccurrence, region_occurrence
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace
from thunder_executors.inductor.building.machine import processors
from thunder_executors.packed_experts.experts import OPERATION, ExpertProducts, products_of, region_text
from thunder_executors.packed_experts.kernel import EXECUTOR_NAME, EXPERTS_LIBRARY
from thunder_executors.packed_experts.measurement import Times, times_of
from thunder_executors.packed_linear.claims import Candidate, KernelExecutor


@dataclass(frozen=True)
class PackedExperts(KernelExecutor[ExpertProducts]):
    """Claims products of experts on the CPU in float32, whose results autograd does not record."""

    name: str = EXECUTOR_NAME

    @property
    def claims(self) -> str:
        """The claimed operation: matrix products of groups of rows on the CPU."""
        return "products of experts on the CPU in float32, for inference, where its kernel is measured to be faster"

    def can_claim(self, bsym: BoundSymbol) -> bool:
        """Whether the kernel could compute a bound symbol."""
        return products_in(bsym) is not None

    def candidates_in(self, trace: Trace, recorded: Sequence[bool]) -> dict[int, Candidate[ExpertProducts]]:
        """Return the products of experts that the kernel supports and autograd does not record, by index."""
        all_products = (
            (index, products_in(bsym)) for index, bsym in enumerate(trace.bound_symbols) if not recorded[index]
        )
        return {index: candidate_at(trace, products, index) for index, products in all_products if products is not None}

    def times_of(self, operation: ExpertProducts, budget: TuningBudget) -> Times | None:
        """Return the times of products; None if the remaining budget is too small."""
        return times_of(operation, budget)

    def refusal_of(self, operation: ExpertProducts, times: KernelTimes, budget: TuningBudget) -> Refusal | None:  # noqa: ARG002
        """Return the reason why PyTorch multiplies; None if the kernel is faster."""
        if times.is_kernel_better:
            return None
        return Refusal(f"PyTorch multiplies {operation.title}: {times}", lasting=True)

    def machine_code(
        self, operation: ExpertProducts, occurrence: RegionOccurrence, times: KernelTimes | None
    ) -> MachineCode:
        """Return the kernel for products; raise `CompilerFailed` or `OutOfDisk`."""
        choice = "" if times is None else f"{operation.title}: {times}"
        library = EXPERTS_LIBRARY.content
        return MachineCode(region_text(operation, occurrence), library, processors()[1], choice=choice)


def products_in(bsym: BoundSymbol) -> ExpertProducts | None:
    """Return the products of an unclaimed bound symbol of a program, if the kernel supports them."""
    if bsym.executor or bsym.symbol.name != OPERATION or bsym.mutates or not bsym.is_resolved:
        return None
    return products_of(bsym)


def candidate_at(trace: Trace, products: ExpertProducts, index: int) -> Candidate[ExpertProducts]:
    """Return the candidate for the bound symbol at an index, whose region returns the products' result."""
    occurrence = region_occurrence([trace.bound_symbols[index]])
    (result,) = (name for name, proxy in occurrence.defined.items() if proxy.name == products.result.name)
    return Candidate(products, occurrence.returning({result}), (index,))


EXECUTOR = PackedExperts()
