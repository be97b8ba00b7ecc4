"""Convolutions on the CPU by oneDNN, with weights that are packed once, and with what follows them.

A batch normalization after a convolution is multiplied into its weight, and an addition and an activation are computed
as the convolution stores its result. Packed weights take memory next to the weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from thunder_core.backend.claiming.executor import Executor
from thunder_core.backend.claiming.kernel_times import NOT_MEASURED
from thunder_core.backend.claiming.tuning import TuningBudget
from thunder_core.backend.fusion.prepared_weights import names_to_prepare
from thunder_core.tracing.analysis.grad_mode import followed_by_autograd, may_be_recorded
from thunder_core.tracing.ir.symbol import BoundSymbol, Symbol
from thunder_core.tracing.ir.trace import RefusedOperations, Trace
from thunder_executors.prepacked_convolution.chain import Chain, chains_in
from thunder_executors.prepacked_convolution.measurement import times_of
from thunder_executors.prepacked_convolution.operator import convolution


@dataclass(frozen=True)
class PrepackedConvolution(Executor):
    """Claims 2-d convolutions in float32 on the CPU, whose weights a module holds, for inference."""

    symbolic_sizes: ClassVar[bool] = True
    fuses_regions: ClassVar[bool] = True  # no backward can be derived from oneDNN's operator
    after: ClassVar[tuple[str, ...]] = ("sdpa", "triton", "joined", "nvfuser")
    before: ClassVar[tuple[str, ...]] = ("inductor",)
    name: str = "prepacked-convolution"
    measures: bool = True

    @property
    def claims(self) -> str:
        """The claimed operations: convolutions on the CPU, with what follows them."""
        return "2-d convolutions on the CPU in float32, with what follows, for inference, where it is measured to pay"

    def without_measuring(self) -> PrepackedConvolution:
        """Return the executor that claims each convolution that oneDNN supports."""
        return replace(self, measures=False)

    def missing(self) -> str | None:
        """Return the reason why PyTorch has no oneDNN here; None if it has."""
        has_library: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        return None if has_library else "this build of PyTorch has no oneDNN"

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
        """Return the trace with oneDNN's convolution in place of each chain for which it is faster."""
        budget = TuningBudget()
        if self.missing() or (self.measures and budget.is_off):
            return trace
        taken: dict[int, BoundSymbol | None] = {}
        refused: Counter[tuple[str, bool]] = Counter()
        for chain in self.chains(trace):
            reason = self.reason_against(chain, budget)
            if reason is None:
                taken |= dict.fromkeys(chain.places)
                taken[chain.places[-1]] = self.call(chain, trace)
            else:
                refused[reason] += 1
        kept = (taken.get(place, bsym) for place, bsym in enumerate(trace.bound_symbols))
        records = [
            RefusedOperations(self.name, reason, count, lasting, by_measurement=True)
            for (reason, lasting), count in refused.items()
        ]
        return trace.having(
            [bsym for bsym in kept if bsym is not None],
            made_by=f"claim by {self.name}",
            refused=(*trace.refused, *records),
        )

    def chains(self, trace: Trace) -> Iterable[Chain]:
        """Yield the convolutions whose parameters a module holds, and which the trace does not write to."""
        recorded = may_be_recorded(trace, followed_by_autograd(trace))
        held = names_to_prepare(trace)
        for chain in chains_in(trace):
            is_recorded = any(recorded[place] for place in chain.places)
            if not is_recorded and all(proxy.name in held for proxy in chain.parameters):
                yield chain

    def reason_against(self, chain: Chain, budget: TuningBudget) -> tuple[str, bool] | None:
        """Return why PyTorch computes a chain, and whether the reason lasts; None if oneDNN's convolution is faster."""
        if not self.measures:
            return None
        times = times_of(chain, budget)
        if times is None:
            return NOT_MEASURED, False
        return None if times.is_kernel_better else (f"PyTorch computes {times}", True)

    def call(self, chain: Chain, trace: Trace) -> BoundSymbol:
        """Return the bound symbol that computes a chain."""
        members = tuple(trace.bound_symbols[place] for place in chain.places)
        constant = all(type(size) is int for size in (*chain.x.shape, *chain.result.stride))
        sizes = {"size": tuple(chain.x.shape), "result_stride": tuple(chain.result.stride)} if constant else {}
        return BoundSymbol(
            symbol=Symbol(f"{convolution.__module__}.{convolution.__name__}", convolution),
            args=(chain.x, chain.weight, chain.bias, chain.statistics, chain.other),
            kwargs={**chain.settings, **sizes},
            output=chain.result,
            subsymbols=members,
            source=members[0].source,
            module=members[0].module,
            executor=self.name,
        )


EXECUTOR = PrepackedConvolution()
