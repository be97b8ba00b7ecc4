"""Find inverted residual blocks in a trace: a pointwise, a depthwise and a second pointwise convolution."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain as concatenated

from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.trace import Trace
from thunder_executors.prepacked_convolution.chain import Chain, readers_in


@dataclass(frozen=True)
class Block:
    """The convolutions of an inverted residual block, each with its normalization, addition and activation.

    `expand` raises the number of channels, `depthwise` filters each channel, and `project` lowers the number of
    channels. `expand` or `project` may be missing, but not both.
    """

    expand: Chain | None
    depthwise: Chain
    project: Chain | None

    @property
    def stages(self) -> tuple[tuple[Chain | None, str], ...]:
        """The convolutions in order, None if missing, each with the method that the kernel computes it by."""
        return (self.expand, "direct"), (self.depthwise, "depthwise"), (self.project, "direct")

    @property
    def chains(self) -> tuple[Chain, ...]:
        """The convolutions, in order."""
        return tuple(chain for chain, _ in self.stages if chain is not None)

    @property
    def indices(self) -> tuple[int, ...]:
        """The indices of all operations of the block in `Trace.bound_symbols`, in ascending order."""
        return tuple(sorted(concatenated.from_iterable(chain.indices for chain in self.chains)))

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
        """The tensor that is added to the result of the last convolution, or None."""
        return self.chains[-1].addend


def blocks_in(trace: Trace, chains: Sequence[Chain]) -> Iterator[Block]:
    """Yield the blocks that the chains form, except blocks whose intermediate results other operations read."""
    readers = readers_in(trace)
    by_result = {chain.result.name: chain for chain in chains if chain.is_pointwise}
    by_input = {chain.x.name: chain for chain in chains if chain.is_pointwise}
    block_results: set[str] = set()  # the results of convolutions that belong to a block
    for depthwise in chains:
        if not depthwise.is_depthwise:
            continue
        expand, project = by_result.get(depthwise.x.name), by_input.get(depthwise.result.name)
        if expand is not None and expand.result.name in block_results:
            expand = None
        if expand is not None and (expand.addend is not None or not is_only_reader(depthwise, expand, readers)):
            expand = None
        if project is not None and (depthwise.addend is not None or not is_only_reader(project, depthwise, readers)):
            project = None
        block = Block(expand, depthwise, project)
        if len(block.chains) > 1 and can_run_at_last_index(trace, block):
            block_results.update(chain.result.name for chain in block.chains)
            yield block


def is_only_reader(chain: Chain, producer: Chain, readers: Mapping[str, Sequence[int]]) -> bool:
    """Whether one operation outside the producer reads the producer's result, and this operation is in the chain."""
    outside = [index for index in readers[producer.result.name] if index not in producer.indices]
    return len(outside) == 1 and outside[0] in chain.indices


def can_run_at_last_index(trace: Trace, block: Block) -> bool:
    """Whether the whole block may be computed in place of its last operation, after the operations in between."""
    between = set(range(block.indices[0], block.indices[-1])).difference(block.indices)
    return not any(trace.bound_symbols[index].mutates or trace.bound_symbols[index].keeps_position for index in between)
