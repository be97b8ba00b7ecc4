"""Convolutions on the CPU with weights that are packed once, and with what precedes and follows them.

A batch normalization after a convolution is multiplied into its weight. Padding, an addition and an activation are
computed with the convolution. Thunder's own kernel computes results in the memory format `torch.channels_last`: direct,
by Winograd's algorithm, or depthwise; oneDNN computes all others. Packed weights take memory next to the weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import ClassVar

import torch

from thunder_core.backend.claiming.executor import Executor
from thunder_core.backend.claiming.kernel_times import NOT_MEASURED
from thunder_core.backend.claiming.tuning import TuningBudget
from thunder_core.backend.fusion.fuse import Refusal, region_bound_symbol
from thunder_core.backend.fusion.machine_code import MachineCode
from thunder_core.backend.fusion.prepared_weights import names_to_prepare
from thunder_core.backend.fusion.region import RegionOccurrence, region_occurrence
from thunder_core.foundation.errors import CompilerFailed, OutOfDisk
from thunder_core.tracing.analysis.grad_mode import followed_by_autograd, may_be_recorded
from thunder_core.tracing.extension.requirement import CxxCompiler
from thunder_core.tracing.ir.symbol import BoundSymbol, Symbol
from thunder_core.tracing.ir.trace import RefusedOperations, Trace
from thunder_executors.inductor.building.machine import processors
from thunder_executors.prepacked_convolution.chain import Chain, chains_in
from thunder_executors.prepacked_convolution.kernel import CONVOLUTIONS, EXECUTOR_NAME, channels_in_panel
from thunder_executors.prepacked_convolution.measurement import Times, times_of, title_of
from thunder_executors.prepacked_convolution.operator import ACTIVATIONS
from thunder_executors.prepacked_convolution.region import ONEDNN, methods_for, region_text

UNMEASURED = Refusal(NOT_MEASURED)


@dataclass(frozen=True)
class PrepackedConvolution(Executor):
    """Claims 2-d convolutions in float32 on the CPU, whose weights a module holds, for inference."""

    symbolic_sizes: ClassVar[bool] = True
    fuses_regions: ClassVar[bool] = True  # no backward can be derived from oneDNN's operator
    after: ClassVar[tuple[str, ...]] = ("sdpa", "triton", "joined", "nvfuser")
    before: ClassVar[tuple[str, ...]] = ("inductor",)
    name: str = EXECUTOR_NAME
    measures: bool = True
    methods: tuple[str, ...] = ("Winograd", "depthwise", "direct", ONEDNN)

    @property
    def claims(self) -> str:
        """The claimed operations: convolutions on the CPU, with what follows them."""
        return "2-d convolutions on the CPU in float32, with what follows, for inference, where it is measured to pay"

    def without_measuring(self) -> PrepackedConvolution:
        """Return the executor that claims each convolution by the first method that supports it."""
        return replace(self, measures=False)

    def missing(self) -> str | None:
        """Return the reason why no method runs here; None if one does."""
        if self.runs(ONEDNN) or any(map(self.runs, self.methods)):
            return None
        return "this build of PyTorch has no oneDNN, and the kernel needs AVX2 and a C++ compiler"

    def runs(self, method: str) -> bool:
        """Whether a method runs on this machine."""
        if method == ONEDNN:
            return bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]
        return channels_in_panel() > 0 and CxxCompiler().missing() is None

    def missing_on(self, device: torch.device) -> str | None:
        """Return the reason why programs on a device are not supported; None on a CPU."""
        return self.missing() if device.type == "cpu" else "it computes on the CPU only"

    def missing_for(self, target: str) -> str | None:  # noqa: ARG002
        """Return the reason why programs for a GPU are not supported."""
        return "it computes on the CPU only"

    def claim(self, bsym: BoundSymbol) -> BoundSymbol | None:  # noqa: ARG002
        """Return None: a convolution is claimed with what follows it."""
        return None

    def takes(self, bsym: BoundSymbol) -> bool:
        """Whether a bound symbol is a convolution that could be claimed."""
        alone = Trace("", bsym.inputs, (bsym,), bsym.output)
        return next(chains_in(alone), None) is not None

    def claim_all(self, trace: Trace) -> Trace:
        """Return the trace with the fastest method in place of each chain for which it is faster than PyTorch."""
        budget = TuningBudget()
        if self.missing() or (self.measures and budget.is_off):
            return trace
        chosen: dict[str, Symbol | Refusal] = {}
        taken: dict[int, BoundSymbol | None] = {}
        refused: Counter[Refusal] = Counter()
        for chain, methods in self.chains(trace):
            occurrence = occurrence_of(trace, chain)
            digest = occurrence.region.digest
            if digest not in chosen:
                choice = self.choice(chain, methods, occurrence, budget)
                name = f"convolution_{sum(isinstance(symbol, Symbol) for symbol in chosen.values())}"
                if isinstance(choice, MachineCode):
                    chosen[digest] = Symbol(name, choice.function(name), empties=True)
                else:
                    chosen[digest] = choice
            symbol = chosen[digest]
            if isinstance(symbol, Refusal):
                refused[symbol] += 1
            else:
                taken |= dict.fromkeys(chain.places)
                taken[chain.places[-1]] = region_bound_symbol(occurrence, symbol, self.name)
        kept = (taken.get(place, bsym) for place, bsym in enumerate(trace.bound_symbols))
        records = [
            RefusedOperations(self.name, refusal.reason, count, refusal.lasting, by_measurement=True)
            for refusal, count in refused.items()
        ]
        return trace.having(
            [bsym for bsym in kept if bsym is not None],
            made_by=f"claim by {self.name}",
            refused=(*trace.refused, *records),
        )

    def chains(self, trace: Trace) -> Iterator[tuple[Chain, tuple[str, ...]]]:
        """Yield the convolutions whose parameters a module holds, and which the trace does not write to."""
        recorded = may_be_recorded(trace, followed_by_autograd(trace))
        held = names_to_prepare(trace)
        for whole in chains_in(trace):
            is_recorded = any(recorded[place] for place in whole.places)
            if is_recorded or not all(proxy.name in held for proxy in whole.parameters):
                continue
            options = ((chain, self.methods_for(chain)) for chain in (whole, whole.alone) if chain is not None)
            yield from islice(((chain, methods) for chain, methods in options if methods), 1)

    def methods_for(self, chain: Chain) -> tuple[str, ...]:
        """Return the methods of this executor that compute a chain on this machine."""
        possible = methods_for(chain)
        if chain.is_symmetric and chain.activation in ACTIVATIONS:
            possible = (*possible, ONEDNN)
        return tuple(method for method in self.methods if method in possible and self.runs(method))

    def choice(
        self, chain: Chain, methods: tuple[str, ...], occurrence: RegionOccurrence, budget: TuningBudget
    ) -> MachineCode | Refusal:
        """Return the code of the fastest method for a chain, or the reason why PyTorch computes it."""
        try:
            times = times_of(chain, methods, budget) if self.measures else None
            if self.measures and times is None:
                return UNMEASURED
            if times is not None and not times.is_kernel_better:
                return Refusal(f"PyTorch computes {times}", lasting=True)
            method = methods[0] if times is None else times.method
            return code_of(chain, occurrence, method, times)
        except (CompilerFailed, OutOfDisk) as error:
            return Refusal(error.what)


def occurrence_of(trace: Trace, chain: Chain) -> RegionOccurrence:
    """Return the region of a chain, which returns the chain's result."""
    occurrence = region_occurrence([trace.bound_symbols[place] for place in chain.places])
    names = {name for name, proxy in occurrence.defined.items() if proxy.name == chain.result.name}
    return occurrence.returning(names)


def code_of(chain: Chain, occurrence: RegionOccurrence, method: str, times: Times | None) -> MachineCode:
    """Return the code of a region by a method; raise `CompilerFailed` or `OutOfDisk`."""
    text = region_text(chain, occurrence, f"{title_of(chain)}: {method}", method, channels_in_panel())
    choice = "" if times is None else str(times)
    if method == ONEDNN:
        return MachineCode(text, b"", (), choice=choice)
    return MachineCode(text, CONVOLUTIONS.content, processors()[1], choice=choice)


EXECUTOR = PrepackedConvolution()
