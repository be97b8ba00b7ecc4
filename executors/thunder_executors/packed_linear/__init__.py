"""Linear layers on the CPU: Thunder's own matrix product, where a measurement shows that it is faster.

It multiplies float32, bfloat16, float16 and quantized weights of 8 or 4 bits. The kernel reads weights in place, widens
narrow weights in registers, and packs a panel of them while it multiplies. No copy of a weight is kept, so the next
call sees every write to a weight.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from thunder_core.backend.claiming.executor import Executor
from thunder_core.backend.claiming.kernel_times import NOT_MEASURED
from thunder_core.backend.claiming.tuning import TuningBudget
from thunder_core.backend.fusion.fuse import Refusal, region_bound_symbol
from thunder_core.backend.fusion.machine_code import MachineCode
from thunder_core.backend.fusion.region import RegionOccurrence, region_occurrence
from thunder_core.foundation.errors import CompilerFailed, OutOfDisk
from thunder_core.tracing.analysis.grad_mode import followed_by_autograd, may_be_recorded
from thunder_core.tracing.extension.requirement import CxxCompiler
from thunder_core.tracing.ir.symbol import BoundSymbol, Symbol
from thunder_core.tracing.ir.trace import RefusedOperations, Trace
from thunder_executors.inductor.building.machine import processors
from thunder_executors.packed_linear.activations import activations_in
from thunder_executors.packed_linear.kernel import EXECUTOR_NAME, library, missing_processor
from thunder_executors.packed_linear.measurement import Times, times_of
from thunder_executors.packed_linear.product import Product, product_of, region_text, with_activation
from thunder_executors.packed_linear.product_kinds import OPERATIONS

UNMEASURED = Refusal(NOT_MEASURED)


@dataclass(frozen=True)
class PackedLinear(Executor):
    """Claims linear layers on the CPU, with weights in floats, 8 or 4 bits, whose results autograd does not record."""

    symbolic_sizes: ClassVar[bool] = True
    fuses_regions: ClassVar[bool] = True  # no backward can be derived from machine code
    after: ClassVar[tuple[str, ...]] = ("sdpa", "triton", "joined", "nvfuser")
    before: ClassVar[tuple[str, ...]] = ("inductor",)
    name: str = EXECUTOR_NAME
    measures: bool = True

    @property
    def claims(self) -> str:
        """The claimed operations: linear layers on the CPU."""
        return "linear layers on the CPU, for inference, where its kernel is measured to be faster"

    def without_measuring(self) -> PackedLinear:
        """Return the executor that claims each linear layer that the kernel supports."""
        return replace(self, measures=False)

    def missing(self) -> str | None:
        """Return what this machine lacks: AVX2 and FMA, or a C++ compiler; None if nothing."""
        return missing_processor() or CxxCompiler().missing()

    def missing_on(self, device: torch.device) -> str | None:
        """Return the reason why programs on a device are not supported; None on a suitable CPU."""
        return self.missing() if device.type == "cpu" else "it multiplies on the CPU only"

    def missing_for(self, target: str) -> str | None:  # noqa: ARG002
        """Return the reason why programs for a GPU are not supported."""
        return "it multiplies on the CPU only"

    def claim(self, bsym: BoundSymbol) -> BoundSymbol | None:  # noqa: ARG002
        """Return None: all linear layers of a program are measured together."""
        return None

    def takes(self, bsym: BoundSymbol) -> bool:
        """Whether the kernel could compute a bound symbol."""
        return product_in(bsym) is not None

    def claim_all(self, trace: Trace) -> Trace:
        """Return the trace with the kernel in place of each linear layer for which it is faster."""
        recorded = may_be_recorded(trace, followed_by_autograd(trace))
        layers = self.layers_in(trace, recorded)
        budget = TuningBudget()
        if not layers or (self.measures and budget.is_off) or self.missing():
            return trace
        choices: dict[str, MachineCode | Refusal] = {}
        for place, layer in layers_with_activation(trace, layers, recorded).items():
            if isinstance(self.choice_once(layer, budget, choices), MachineCode):
                layers[place] = layer
        chosen = {layer.digest: self.choice_once(layer, budget, choices) for layer in layers.values()}
        kept, refused = replace_layers(trace, layers.values(), chosen, self.name)
        return trace.having(kept, made_by=f"claim by {self.name}", refused=(*trace.refused, *refused))

    def layers_in(self, trace: Trace, recorded: Sequence[bool]) -> dict[int, Layer]:
        """Return the linear layers of a trace that the kernel supports and autograd has not `recorded`, by place."""
        return layers_in(trace, recorded)

    def choice_once(
        self, layer: Layer, budget: TuningBudget, choices: dict[str, MachineCode | Refusal]
    ) -> MachineCode | Refusal:
        """Return the choice for a layer, which is made once for equal layers."""
        if layer.digest not in choices:
            choices[layer.digest] = self.choice(layer.product, layer.occurrence, budget)
        return choices[layer.digest]

    def choice(self, product: Product, occurrence: RegionOccurrence, budget: TuningBudget) -> MachineCode | Refusal:
        """Return the kernel for a product, or the reason why PyTorch's library multiplies."""
        try:
            times = times_of(product, budget) if self.measures else None
            if self.measures and times is None:
                return UNMEASURED
            if times is not None and (refusal := self.refusal_of(product, times, budget)) is not None:
                return refusal
            choice = "" if times is None else f"{product.title}: {times}"
            return MachineCode(region_text(product, occurrence), library(product.kind), processors()[1], choice=choice)
        except (CompilerFailed, OutOfDisk) as error:
            return Refusal(error.what)

    def refusal_of(self, product: Product, times: Times, budget: TuningBudget) -> Refusal | None:  # noqa: ARG002
        """Return the reason why PyTorch multiplies; None if the kernel is faster."""
        if times.is_kernel_better:
            return None
        return Refusal(f"PyTorch multiplies {product.title}: {times}", lasting=True)


@dataclass(frozen=True)
class Layer:
    """A linear layer of a trace, with its activation if the kernel computes it: the product, and its bound symbols."""

    product: Product
    occurrence: RegionOccurrence
    places: tuple[int, ...]

    @property
    def digest(self) -> str:
        """The digest of the region, which is the same for equal layers."""
        return self.occurrence.region.digest


def layers_in(trace: Trace, recorded: Sequence[bool]) -> dict[int, Layer]:
    """Return the linear layers of a trace that the kernel supports and autograd has not `recorded`, by place."""
    candidates = ((place, product_in(bsym)) for place, bsym in enumerate(trace.bound_symbols) if not recorded[place])
    return {place: layer_at(trace, product, place) for place, product in candidates if product is not None}


def layers_with_activation(trace: Trace, layers: Mapping[int, Layer], recorded: Sequence[bool]) -> dict[int, Layer]:
    """Return the layers whose results only an activation reads, together with this activation, by place."""
    pairs = {place: at for place, at in activations_in(trace, layers).items() if not recorded[at]}
    products = {place: with_activation(layers[place].product, trace.bound_symbols[at]) for place, at in pairs.items()}
    return {
        place: layer_at(trace, product, place, pairs[place])
        for place, product in products.items()
        if product is not None
    }


def product_in(bsym: BoundSymbol) -> Product | None:
    """Return the product of an unclaimed bound symbol of a program, if the kernel supports it."""
    if bsym.executor or bsym.symbol.name not in OPERATIONS or bsym.mutates or not bsym.is_resolved:
        return None
    return product_of(bsym)


def layer_at(trace: Trace, product: Product, *places: int) -> Layer:
    """Return the layer of the bound symbols at some places, whose region returns the product's result."""
    occurrence = region_occurrence([trace.bound_symbols[place] for place in places])
    (result,) = (name for name, proxy in occurrence.defined.items() if proxy.name == product.result.name)
    return Layer(product, occurrence.returning({result}), places)


def replace_layers(
    trace: Trace, layers: Iterable[Layer], chosen: Mapping[str, MachineCode | Refusal], executor: str
) -> tuple[list[BoundSymbol], list[RefusedOperations]]:
    """Return the bound symbols with each layer replaced by its kernel, and the records of all other layers."""
    symbols = symbols_of(chosen, executor.replace("-", "_"))
    taken: dict[int, list[BoundSymbol]] = {}
    refused: Counter[Refusal] = Counter()
    for layer in layers:
        choice = chosen[layer.digest]
        if isinstance(choice, Refusal):
            refused[choice] += 1
        else:
            taken |= {place: [] for place in layer.places}
            taken[layer.places[0]] = [region_bound_symbol(layer.occurrence, symbols[layer.digest], executor)]
    kept = [kept for place, bsym in enumerate(trace.bound_symbols) for kept in taken.get(place, [bsym])]
    return kept, [refused_layers(executor, refusal, count) for refusal, count in refused.items()]


def symbols_of(choices: Mapping[str, MachineCode | Refusal], prefix: str) -> dict[str, Symbol]:
    """Return the symbols of the kernels, numbered in order of occurrence."""
    kernels = {digest: choice for digest, choice in choices.items() if isinstance(choice, MachineCode)}
    names = {digest: f"{prefix}_{number}" for number, digest in enumerate(kernels)}
    return {
        digest: Symbol(names[digest], code.function(names[digest]), empties=True) for digest, code in kernels.items()
    }


def refused_layers(executor: str, refusal: Refusal, count: int) -> RefusedOperations:
    """Return the record of linear layers left to the library: by a measurement, unless compilation failed."""
    by_measurement = refusal.lasting or refusal == UNMEASURED
    return RefusedOperations(executor, refusal.reason, count, refusal.lasting, by_measurement=by_measurement)


EXECUTOR = PackedLinear()
