"""Linear layers on the CPU with weights that are packed once: the matrix product of `packed-linear`, for inference.

A packed weight takes memory next to the weight, and is packed again after a write that the version counter shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from thunder_core.backend.claiming.kernel_times import MARGIN
from thunder_core.backend.claiming.tuning import TuningBudget
from thunder_core.backend.fusion.fuse import Refusal
from thunder_core.backend.fusion.machine_code import MachineCode
from thunder_core.backend.fusion.region import RegionOccurrence
from thunder_core.backend.fusion.wrapping import is_held
from thunder_core.tracing.analysis.aliasing import names_written_to
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace
from thunder_executors.packed_linear import UNMEASURED, Layer, PackedLinear, layers_in, product_in
from thunder_executors.packed_linear.measurement import times_of
from thunder_executors.packed_linear.product import Product
from thunder_executors.packed_linear.product_kinds import FLOAT32, PREPACKED


@dataclass(frozen=True)
class PrepackedLinear(PackedLinear):
    """Claims linear layers in float32 on the CPU, whose weights a module holds, for inference."""

    after: ClassVar[tuple[str, ...]] = ("sdpa", "triton", "joined", "nvfuser")
    before: ClassVar[tuple[str, ...]] = ("packed-linear", "inductor")
    name: str = "prepacked-linear"

    @property
    def claims(self) -> str:
        """The claimed operations: linear layers on the CPU."""
        return "linear layers on the CPU in float32, for inference, where packing their weights once is measured to pay"

    def takes(self, bsym: BoundSymbol) -> bool:
        """Whether the kernel could compute a bound symbol."""
        return prepacked_product_in(bsym) is not None

    def layers_in(self, trace: Trace, recorded: Sequence[bool]) -> dict[int, Layer]:
        """Return the linear layers of a trace whose weights a module holds, and which is not written to."""
        written = names_written_to(trace)
        held = {proxy.name for proxy in trace.inputs if is_held(trace.origins.get(proxy.name, ""))} - written

        def held_product_in(bsym: BoundSymbol) -> Product | None:
            product = prepacked_product_in(bsym)
            return product if product is not None and product.weight.name in held else None

        return layers_in(trace, recorded, held_product_in)

    def choice(self, product: Product, occurrence: RegionOccurrence, budget: TuningBudget) -> MachineCode | Refusal:
        """Return the kernel for a product, or the reason why another executor multiplies."""
        if self.measures:
            packed, in_place = times_of(product, budget), times_of(replace(product, kind=FLOAT32), budget)
            if packed is None or in_place is None:
                return UNMEASURED
            if in_place.is_kernel_better and packed.kernel >= MARGIN * in_place.kernel:
                return Refusal(f"packed-linear multiplies {product.title}: {packed}, {in_place}", lasting=True)
        return super().choice(product, occurrence, budget)


def prepacked_product_in(bsym: BoundSymbol) -> Product | None:
    """Return the product of a bound symbol with a packed weight; None if the kernel does not support it."""
    product = product_in(bsym)
    if product is None or product.kind != FLOAT32:
        return None
    return replace(product, kind=PREPACKED)


EXECUTOR = PrepackedLinear()
