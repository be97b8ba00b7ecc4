"""Linear layers on the CPU: Thunder's own matrix product, where a measurement shows that it is faster.

The kernel multiplies weights in float32, bfloat16 and float16, and quantized weights of 8 or 4 bits. It reads weights
in place, widens narrow weights in registers, and packs a panel of weights while it multiplies. No copy of a weight is
kept, so the next call sees every write to a weight.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from thunder_core.backend.claiming.tuning import TuningBudget
from thunder_core.backend.fusion.region import RegionOccurrence
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace
from thunder_executors.inductor.building.kernel_library import KernelLibrary
from thunder_executors.packed_linear.activations import activations_in
from thunder_executors.packed_linear.claims import Candidate, KernelExecutor
from thunder_executors.packed_linear.kernel import EXECUTOR_NAME, library_of
from thunder_executors.packed_linear.measurement import Times, times_of
from thunder_executors.packed_linear.product import Product, product_of, region_text, with_activation
from thunder_executors.packed_linear.product_kinds import OPERATIONS

Layer = Candidate[Product]


@dataclass(frozen=True)
class PackedLinear(KernelExecutor[Product]):
    """Claims linear layers on the CPU, with weights in floats, 8 or 4 bits, whose results autograd does not record."""

    operations: ClassVar[Collection[str]] = OPERATIONS
    off_cpu: ClassVar[str] = "it multiplies on the CPU only"
    name: str = EXECUTOR_NAME

    @property
    def claims(self) -> str:
        """The claimed operations: linear layers on the CPU."""
        return "linear layers on the CPU, for inference, where its kernel is measured to be faster"

    def operation_of(self, bsym: BoundSymbol) -> Product | None:
        """Return the product of a linear layer, if the kernel supports it."""
        return product_of(bsym)

    def extend_candidates(
        self, trace: Trace, candidates: Mapping[int, Layer], recorded: Sequence[bool]
    ) -> dict[int, Layer]:
        """Return each layer whose result only an activation reads, together with this activation, by index."""
        pairs = {index: at for index, at in activations_in(trace, candidates).items() if not recorded[at]}
        products = {
            index: with_activation(candidates[index].operation, trace.bound_symbols[at]) for index, at in pairs.items()
        }
        return {
            index: self.candidate_at(trace, product, index, pairs[index])
            for index, product in products.items()
            if product is not None
        }

    def times_of(self, operation: Product, budget: TuningBudget) -> Times | None:
        """Return the times of a product; None if the remaining budget is too small."""
        return times_of(operation, budget)

    def region_text(self, operation: Product, occurrence: RegionOccurrence) -> str:
        """Return the source of the region that multiplies."""
        return region_text(operation, occurrence)

    def library_of(self, operation: Product) -> KernelLibrary:
        """Return the library of a kind of products."""
        return library_of(operation.kind)


EXECUTOR = PackedLinear()
