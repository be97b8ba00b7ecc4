"""Linear layers on the CPU: Thunder's own matrix product, where a measurement shows that it is faster.

The kernel multiplies weights in float32, bfloat16 and float16, and quantized weights of 8 or 4 bits. It reads weights
in place, widens narrow weights in registers, and packs a panel of weights while it multiplies. No copy of a weight is
kept, so the next call sees every write to a weight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from thunder_core.backend.claiming.kernel_times import KernelTimes
from thunder_core.backend.claiming.tuning import TuningBudget
from thunder_core.backend.fusion.fuse import Refusal
from thunder_core.backend.fusion.machine_code import MachineCode
from thunder_core.backend.fusion.region import RegionOccurrence, region_occurrence
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace
from thunder_executors.inductor.building.machine import processors
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

    off_cpu: ClassVar[str] = "it multiplies on the CPU only"
    name: str = EXECUTOR_NAME

    @property
    def claims(self) -> str:
        """The claimed operations: linear layers on the CPU."""
        return "linear layers on the CPU, for inference, where its kernel is measured to be faster"

    def can_claim(self, bsym: BoundSymbol) -> bool:
        """Whether the kernel could compute a bound symbol."""
        return product_in(bsym) is not None

    def candidates_in(self, trace: Trace, recorded: Sequence[bool]) -> dict[int, Layer]:
        """Return the linear layers of a trace that the kernel supports and autograd does not record, by index."""
        products = ((index, product_in(bsym)) for index, bsym in enumerate(trace.bound_symbols) if not recorded[index])
        return {index: layer_at(trace, product, index) for index, product in products if product is not None}

    def extend_candidates(
        self, trace: Trace, candidates: Mapping[int, Layer], recorded: Sequence[bool]
    ) -> dict[int, Layer]:
        """Return each layer whose result only an activation reads, together with this activation, by index."""
        return layers_with_activation(trace, candidates, recorded)

    def times_of(self, operation: Product, budget: TuningBudget) -> Times | None:
        """Return the times of a product; None if the remaining budget is too small."""
        return times_of(operation, budget)

    def refusal_of(self, operation: Product, times: KernelTimes, budget: TuningBudget) -> Refusal | None:  # noqa: ARG002
        """Return the reason why PyTorch multiplies; None if the kernel is faster."""
        if times.is_kernel_better:
            return None
        return Refusal(f"PyTorch multiplies {operation.title}: {times}", lasting=True)

    def machine_code(self, operation: Product, occurrence: RegionOccurrence, times: KernelTimes | None) -> MachineCode:
        """Return the kernel for a product; raise `CompilerFailed` or `OutOfDisk`."""
        choice = "" if times is None else f"{operation.title}: {times}"
        library = library_of(operation.kind).content
        return MachineCode(region_text(operation, occurrence), library, processors()[1], choice=choice)


def layers_with_activation(trace: Trace, layers: Mapping[int, Layer], recorded: Sequence[bool]) -> dict[int, Layer]:
    """Return each layer whose result only an activation reads, together with this activation, by index."""
    pairs = {index: at for index, at in activations_in(trace, layers).items() if not recorded[at]}
    products = {index: with_activation(layers[index].operation, trace.bound_symbols[at]) for index, at in pairs.items()}
    return {
        index: layer_at(trace, product, index, pairs[index])
        for index, product in products.items()
        if product is not None
    }


def product_in(bsym: BoundSymbol) -> Product | None:
    """Return the product of an unclaimed bound symbol of a program, if the kernel supports it."""
    if bsym.executor or bsym.symbol.name not in OPERATIONS or bsym.mutates or not bsym.is_resolved:
        return None
    return product_of(bsym)


def layer_at(trace: Trace, product: Product, *indices: int) -> Layer:
    """Return the layer of the bound symbols at some indices, whose region returns the product's result."""
    occurrence = region_occurrence([trace.bound_symbols[index] for index in indices])
    (result,) = (name for name, proxy in occurrence.defined.items() if proxy.name == product.result.name)
    return Candidate(product, occurrence.returning({result}), indices)


EXECUTOR = PackedLinear()
