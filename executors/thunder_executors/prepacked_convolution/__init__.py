"""Convolutions on the CPU with weights that are packed once, together with the operations around them.

The module `chain` finds a convolution with its padding, normalization, addition and activation, `block` finds inverted
residual blocks of three convolutions, and `pooling` finds means over all pixels. For each, the executor measures the
methods that support it, and replaces its operations by the fastest. The methods `direct`, `planes`, `Winograd`,
`depthwise`, `block` and `pool` are Thunder's own kernels, whose results are in the memory format `torch.channels_last`.
oneDNN supports other formats, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch

from thunder_core.backend.claiming.tuning import TuningBudget
from thunder_core.backend.fusion.fuse import Refusal, region_bound_symbol
from thunder_core.backend.fusion.machine_code import MachineCode
from thunder_core.backend.fusion.prepared_weights import names_to_prepare
from thunder_core.backend.fusion.region import RegionOccurrence, region_occurrence
from thunder_core.foundation.errors import CompilerFailed, OutOfDisk
from thunder_core.tracing.analysis.grad_mode import may_be_recorded, tracked_by_autograd
from thunder_core.tracing.extension.requirement import CxxCompiler
from thunder_core.tracing.ir.symbol import BoundSymbol, Symbol
from thunder_core.tracing.ir.trace import RefusedOperations, Trace
from thunder_executors.inductor.building.machine import processors
from thunder_executors.packed_linear.claims import UNMEASURED, CpuExecutor
from thunder_executors.prepacked_convolution.block import Block, blocks_in
from thunder_executors.prepacked_convolution.block_measurement import BlockTimes, block_title
from thunder_executors.prepacked_convolution.block_measurement import block_times as times_of_block
from thunder_executors.prepacked_convolution.chain import Chain, chains_in
from thunder_executors.prepacked_convolution.kernel import CONVOLUTIONS, EXECUTOR_NAME, channels_in_panel
from thunder_executors.prepacked_convolution.measurement import times_of, title_of
from thunder_executors.prepacked_convolution.operator import ACTIVATIONS
from thunder_executors.prepacked_convolution.pooling import Pool, pools_in
from thunder_executors.prepacked_convolution.pooling_measurement import PoolTimes, pool_times, pool_title
from thunder_executors.prepacked_convolution.region import ONEDNN, Part, block_text, methods_for, pool_text, region_text

BLOCK = "block"  # the method that computes several convolutions
POOL_METHOD = "pool"  # the method that computes the mean over all pixels


@dataclass(frozen=True)
class PrepackedConvolution(CpuExecutor):
    """Claims 2-d convolutions in float32 on the CPU for inference, if their weights are parameters of a module."""

    name: str = EXECUTOR_NAME
    methods: tuple[str, ...] = (BLOCK, POOL_METHOD, "Winograd", "depthwise", "planes", "direct", ONEDNN)

    @property
    def claims(self) -> str:
        """The claimed operations: convolutions on the CPU with following operations, and pooling of whole images."""
        what = "2-d convolutions on the CPU in float32, with the operations around them, and means of whole images"
        return f"{what}, for inference, where its methods are measured to be faster"

    def missing(self) -> str | None:
        """Return the reason why no method runs on this machine; None if a method runs."""
        if self.runs(ONEDNN) or any(map(self.runs, self.methods)):
            return None
        return "this build of PyTorch has no oneDNN, and the kernel needs AVX2 and a C++ compiler"

    def runs(self, method: str) -> bool:
        """Whether a method runs on this machine."""
        if method == ONEDNN:
            return bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]
        return channels_in_panel() > 0 and CxxCompiler().missing() is None

    def can_claim(self, bsym: BoundSymbol) -> bool:
        """Whether a bound symbol is a convolution or a pooling that could be claimed."""
        only = Trace("", bsym.inputs, (bsym,), bsym.output)
        return next(chains_in(only), None) is not None or next(pools_in(only), None) is not None

    def claim_all(self, trace: Trace) -> Trace:
        """Return the trace with the fastest method in place of each chain for which it is faster than PyTorch."""
        budget = TuningBudget()
        if self.missing() or (self.measures and budget.is_off):
            return trace
        choices = [self.choice(chain, methods, budget) for chain, methods in self.chains(trace)]
        claims = Claims(trace, self.name)
        for block in self.blocks(trace, choices):
            claims.add_block(block, self.times_of_block(block, choices, budget))
        for choice in choices:
            claims.add_chain(choice)
        for pool in self.pools(trace):
            self.add_pool(claims, pool, budget)
        return claims.claimed_trace()

    def pools(self, trace: Trace) -> Iterator[Pool]:
        """Yield the poolings of whole images that the kernel computes."""
        if POOL_METHOD in self.methods and self.runs(POOL_METHOD):
            recorded = may_be_recorded(trace, tracked_by_autograd(trace))
            yield from (pool for pool in pools_in(trace) if not any(recorded[index] for index in pool.indices))

    def add_pool(self, claims: Claims, pool: Pool, budget: TuningBudget) -> None:
        """Replace a pooling by the kernel if it is measured to be faster."""
        try:
            times = pool_times(pool, budget) if self.measures else PoolTimes(0.0, 1.0)
        except (CompilerFailed, OutOfDisk) as error:
            claims.refuse(Refusal(error.what))
            return
        if times is None:
            claims.refuse(UNMEASURED)
        elif not times.is_kernel_better:
            claims.refuse(Refusal(f"PyTorch computes {times}", lasting=True))
        else:
            claims.add_pool(pool, str(times) if times.title else "")

    def chains(self, trace: Trace) -> Iterator[tuple[Chain, tuple[str, ...]]]:
        """Yield the convolutions that can be claimed, with the methods that support them.

        Weights and biases must be parameters or buffers of a module, and the trace must not write to them. In training,
        they must not require a gradient. If no method supports a convolution with its preceding operations, the
        convolution is yielded without these operations.
        """
        recorded = may_be_recorded(trace, tracked_by_autograd(trace))
        preparable = names_to_prepare(trace, recorded)
        for chain in chains_in(trace):
            is_recorded = any(recorded[index] for index in chain.indices)
            if is_recorded or not all(proxy.name in preparable for proxy in chain.parameters):
                continue
            if methods := self.methods_for(chain):
                yield chain, methods
            elif chain.without_preceding is not None and (methods := self.methods_for(chain.without_preceding)):
                yield chain.without_preceding, methods

    def methods_for(self, chain: Chain) -> tuple[str, ...]:
        """Return the methods of this executor that compute a chain on this machine."""
        possible = methods_for(chain)
        if chain.is_symmetric and chain.activation in ACTIVATIONS:
            possible = (*possible, ONEDNN)
        return tuple(method for method in self.methods if method in possible and self.runs(method))

    def choice(self, chain: Chain, methods: tuple[str, ...], budget: TuningBudget) -> Choice:
        """Return the fastest method for a chain, or the reason why PyTorch computes it."""
        if not self.measures:
            return Choice(chain, methods, methods[0])
        try:
            times = times_of(chain, methods, budget)
        except (CompilerFailed, OutOfDisk) as error:
            return Choice(chain, methods, refusal=Refusal(error.what))
        if times is None:
            return Choice(chain, methods, refusal=UNMEASURED)
        if not times.is_kernel_better:
            return Choice(chain, methods, refusal=Refusal(f"PyTorch computes {times}", lasting=True))
        return Choice(chain, methods, times.method, str(times))

    def blocks(self, trace: Trace, choices: Iterable[Choice]) -> Iterator[Block]:
        """Yield the blocks of convolutions that the kernel computes."""
        if BLOCK in self.methods and self.runs(BLOCK):
            supported = [choice.chain for choice in choices if {"direct", "depthwise"} & set(methods_for(choice.chain))]
            yield from blocks_in(trace, supported)

    def times_of_block(self, block: Block, choices: Iterable[Choice], budget: TuningBudget) -> BlockTimes | None:
        """Return the times of a block; None if it is not measured, or not faster than its separate convolutions."""
        if not self.measures:
            return BlockTimes(0.0, 1.0)
        methods = {id(choice.chain): choice.method for choice in choices}
        try:
            times = times_of_block(block, [methods[id(chain)] for chain in block.chains], budget)
        except (CompilerFailed, OutOfDisk):
            return None
        return times if times is not None and times.is_kernel_better else None


@dataclass(frozen=True)
class Choice:
    """The fastest method for a chain, with its times as text; or the refusal, if PyTorch computes the chain.

    `methods` has all methods that support the chain.
    """

    chain: Chain
    methods: tuple[str, ...]
    method: str = ""
    times_text: str = ""
    refusal: Refusal | None = None


class Claims:
    """Replaces operations of a trace by kernels, and counts the refusals of other operations."""

    def __init__(self, trace: Trace, executor: str) -> None:
        self._trace = trace
        self._executor = executor
        self._symbols: dict[str, Symbol] = {}
        # The call of a kernel, at the last index of the operations that it replaces; None at their other indices.
        self._replaced: dict[int, BoundSymbol | None] = {}
        self._refused: Counter[Refusal] = Counter()

    def add_block(self, block: Block, times: BlockTimes | None) -> None:
        """Replace the operations of a block by its kernel; without times, its chains are added separately."""
        if times is None:
            return
        occurrence = occurrence_of(self._trace, block)
        times_text = str(times) if times.title else ""
        self._replace(block, occurrence, lambda: code_of_block(block, occurrence, times_text))

    def add_chain(self, choice: Choice) -> None:
        """Replace the operations of a chain that belongs to no block, or count its refusal."""
        if choice.chain.indices[-1] in self._replaced:
            return
        if choice.refusal is not None:
            self.refuse(choice.refusal)
            return
        occurrence = occurrence_of(self._trace, choice.chain)
        self._replace(choice.chain, occurrence, lambda: code_of(choice, occurrence))

    def add_pool(self, pool: Pool, times_text: str) -> None:
        """Replace a pooling by the kernel; `times_text` are its times as text."""
        occurrence = occurrence_of(self._trace, pool)
        self._replace(pool, occurrence, lambda: code_of_pool(pool, occurrence, times_text))

    def refuse(self, refusal: Refusal) -> None:
        """Count an operation that PyTorch computes for a reason."""
        self._refused[refusal] += 1

    def _replace(self, part: Part, occurrence: RegionOccurrence, code: Callable[[], MachineCode]) -> None:
        """Replace the operations of a part by a call of its code, which is the same for equal regions."""
        digest = occurrence.region.digest
        try:
            if digest not in self._symbols:
                name = f"convolution_{len(self._symbols)}"
                self._symbols[digest] = Symbol(name, code().function(name), empties=True)
        except (CompilerFailed, OutOfDisk) as error:
            self.refuse(Refusal(error.what))
            return
        self._replaced |= dict.fromkeys(part.indices)
        self._replaced[part.indices[-1]] = region_bound_symbol(occurrence, self._symbols[digest], self._executor)

    def claimed_trace(self) -> Trace:
        """Return the trace with all replacements."""
        bsyms = (self._replaced.get(index, bsym) for index, bsym in enumerate(self._trace.bound_symbols))
        records = [
            RefusedOperations(self._executor, refusal.reason, count, refusal.lasting, by_measurement=True)
            for refusal, count in self._refused.items()
        ]
        return self._trace.having(
            [bsym for bsym in bsyms if bsym is not None],
            made_by=f"claim by {self._executor}",
            refused=(*self._trace.refused, *records),
        )


def occurrence_of(trace: Trace, part: Part) -> RegionOccurrence:
    """Return the region of a part of a trace, which returns the part's result."""
    occurrence = region_occurrence([trace.bound_symbols[index] for index in part.indices])
    names = {name for name, proxy in occurrence.defined.items() if proxy.name == part.result.name}
    return occurrence.returning(names)


def code_of(choice: Choice, occurrence: RegionOccurrence) -> MachineCode:
    """Return the code of a chain by its method; raise `CompilerFailed` or `OutOfDisk`."""
    chain, method = choice.chain, choice.method
    text = region_text(chain, occurrence, f"{title_of(chain)}: {method}", method, channels_in_panel())
    if method == ONEDNN:
        return MachineCode(text, b"", (), choice=choice.times_text)
    return MachineCode(text, CONVOLUTIONS.content, processors()[1], choice=choice.times_text)


def code_of_block(block: Block, occurrence: RegionOccurrence, times_text: str) -> MachineCode:
    """Return the code of a block; raise `CompilerFailed` or `OutOfDisk`."""
    text = block_text(block, occurrence, block_title(block), channels_in_panel())
    return MachineCode(text, CONVOLUTIONS.content, processors()[1], choice=times_text)


def code_of_pool(pool: Pool, occurrence: RegionOccurrence, times_text: str) -> MachineCode:
    """Return the code of a pooling; raise `CompilerFailed` or `OutOfDisk`."""
    text = pool_text(pool, occurrence, pool_title(pool))
    return MachineCode(text, CONVOLUTIONS.content, processors()[1], choice=times_text)


EXECUTOR = PrepackedConvolution()
