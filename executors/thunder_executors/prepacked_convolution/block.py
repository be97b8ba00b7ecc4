"""Inverted residual blocks in a trace: a pointwise, a depthwise and a pointwise convolution after each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain as chained

from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.trace import Trace
from thunder_executors.prepacked_convolution.chain import Chain, readers_in


@dataclass(frozen=True)
class Block:
    """A depthwise convolution, after a pointwise convolution that expands and before another that projects channels."""

    expand: Chain | None
    depthwise: Chain
    project: Chain | None

    @property
    def stages(self) -> tuple[tuple[Chain | None, str], ...]:
        """The three convolutions in order, None for a missing one, each with its method in the kernel."""
        return (self.expand, "direct"), (self.depthwise, "depthwise"), (self.project, "direct")

    @property
    def chains(self) -> tuple[Chain, ...]:
        """The convolutions, in order."""
        return tuple(chain for chain, _ in self.stages if chain is not None)

    @property
    def indices(self) -> tuple[int, ...]:
        """The indices of all operations among the bound symbols."""
        return tuple(sorted(chained.from_iterable(chain.indices for chain in self.chains)))

    @property
    def x(self) -> TensorProxy:
        """The input of the first convolution."""
        return self.chains[0].x

    @property
    def result(self) -> TensorProxy:
        """The result of the last convolution."""
        return self.chains[-1].result

    @property
    def addend(self) -> TensorProxy | None:
        """The tensor that is added to the result of the last convolution."""
        return self.chains[-1].addend


def blocks_in(trace: Trace, chains: Sequence[Chain]) -> Iterator[Block]:
    """Yield the blocks among chains whose intermediate results nothing else reads."""
    readers = readers_in(trace)
    by_result = {chain.result.name: chain for chain in chains if chain.is_pointwise}
    by_input = {chain.x.name: chain for chain in chains if chain.is_pointwise}
    taken: set[str] = set()  # the results of convolutions that belong to a block
    for middle in chains:
        if not middle.is_depthwise:
            continue
        expand, project = by_result.get(middle.x.name), by_input.get(middle.result.name)
        if expand is not None and expand.result.name in taken:
            expand = None
        if expand is not None and (expand.addend is not None or not is_read_only_by(middle, expand, readers)):
            expand = None
        if project is not None and (middle.addend is not None or not is_read_only_by(project, middle, readers)):
            project = None
        block = Block(expand, middle, project)
        if len(block.chains) > 1 and can_run_at_end(trace, block):
            taken.update(chain.result.name for chain in block.chains)
            yield block


def is_read_only_by(chain: Chain, before: Chain, readers: Mapping[str, Sequence[int]]) -> bool:
    """Whether only a chain reads the result of the chain before it."""
    outside = [index for index in readers[before.result.name] if index not in before.indices]
    return len(outside) == 1 and outside[0] in chain.indices


def can_run_at_end(trace: Trace, block: Block) -> bool:
    """Whether all convolutions of a block may be computed at the index of the last operation."""
    between = set(range(block.indices[0], block.indices[-1])).difference(block.indices)
    return not any(trace.bound_symbols[index].mutates or trace.bound_symbols[index].keeps_place for index in between)
