"""Linear layers on the CPU for inference: the matrix product of `packed-linear`, with weights that are packed once.

A packed weight needs memory in addition to the weight. It is packed again after a write that changes the version
counter of the weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from thunder_core.backend.claiming.kernel_times import TIME_MARGIN, KernelTimes
from thunder_core.backend.claiming.tuning import TuningBudget
from thunder_core.backend.fusion.fuse import Refusal
from thunder_core.backend.fusion.prepared_weights import names_to_prepare
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace
from thunder_executors.packed_linear import Layer, PackedLinear
from thunder_executors.packed_linear.claims import UNMEASURED
from thunder_executors.packed_linear.kernel import PREPACKED_NAME
from thunder_executors.packed_linear.product import Product
from thunder_executors.packed_linear.product_kinds import FLOAT32, PREPACKED


@dataclass(frozen=True)
class PrepackedLinear(PackedLinear):
    """Claims linear layers in float32 on the CPU, whose weights a module holds, for inference."""

    after: ClassVar[tuple[str, ...]] = ("sdpa", "triton", "joined", "nvfuser")
    before: ClassVar[tuple[str, ...]] = ("packed-linear", "inductor")
    name: str = PREPACKED_NAME

    @property
    def claims(self) -> str:
        """The claimed operations: linear layers on the CPU."""
        return "linear layers on the CPU in float32, for inference, where packing their weights once is faster"

    def operation_of(self, bsym: BoundSymbol) -> Product | None:
        """Return the product of a linear layer in float32, if the kernel supports it."""
        product = super().operation_of(bsym)
        return product if product is not None and product.kind == FLOAT32 else None

    def candidates_in(self, trace: Trace, recorded: Sequence[bool]) -> dict[int, Layer]:
        """Return the linear layers in float32 with weights that a module holds and the trace does not write to.

        In training, only layers with weights that require no gradient are returned.
        """
        preparable = names_to_prepare(trace, recorded)
        return {
            index: replace(layer, operation=replace(layer.operation, kind=PREPACKED))
            for index, layer in super().candidates_in(trace, recorded).items()
            if layer.operation.weight.name in preparable
        }

    def refusal_of(self, operation: Product, times: KernelTimes, budget: TuningBudget) -> Refusal | None:
        """Return the reason why PyTorch, or `packed-linear`, runs the product; None if this executor is faster."""
        packing = replace(operation, kind=FLOAT32)
        in_place = self.times_of(packing, budget)
        if in_place is None:
            return UNMEASURED
        if in_place.is_kernel_better and times.kernel >= TIME_MARGIN * in_place.kernel:
            return Refusal(f"packed-linear multiplies {packing.title}: {times}, {in_place}", lasting=True)
        return super().refusal_of(operation, times, budget)


EXECUTOR = PrepackedLinear()
