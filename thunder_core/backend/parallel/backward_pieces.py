"""Cut a backward into pieces: each piece returns the gradients of one group of inputs as soon as they are final.

Together, the pieces have the claimed lines of the backward in the same order, so the gradients are the same bit by bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch

from thunder_core.backend.parallel.buckets import BucketSizes
from thunder_core.tracing.analysis.aliasing import alias_sets
from thunder_core.tracing.analysis.collectives import Waits
from thunder_core.tracing.ir.proxy import NumberProxy, Proxy, TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace

Groups = tuple[tuple[int, ...], ...]  # the positions of gradients in the output of a backward, in the order of pieces
SET_RANDOM_STATE = frozenset({torch.set_rng_state, torch.cuda.set_rng_state})


class GradientArrivals(NamedTuple):
    """When the gradients of a backward are final, and the size of each gradient in bytes.

    `lines` has, for each gradient, the index of the line after which a piece may return the gradient; -1 for None.
    """

    lines: tuple[int, ...]
    bytes: tuple[int, ...]

    def at_lines(self, lines: Sequence[int]) -> GradientArrivals:
        """Return the arrivals in another form of the backward; `lines` maps old indices of lines to new indices."""
        return GradientArrivals(tuple(lines[end] if end >= 0 else end for end in self.lines), self.bytes)


def groups_of_gradients(arrivals: GradientArrivals, buckets: BucketSizes) -> Groups:
    """Divide the gradients of a backward into groups of the sizes of buckets, in the order in which they are computed.

    A gradient that is None belongs to the first group.
    """
    ends, sizes = arrivals
    order = sorted(range(len(ends)), key=ends.__getitem__)
    groups: list[list[int]] = [[]]
    size = 0
    for position, after in zip(order, [*order[1:], None], strict=True):
        groups[-1].append(position)
        size += sizes[position] if ends[position] >= 0 else 0
        is_full = size >= (buckets.first if len(groups) == 1 else buckets.following)
        if is_full and after is not None and ends[after] > ends[position]:
            groups.append([])
            size = 0
    return tuple(map(tuple, groups))


def gradient_arrivals(backward: Trace, inputs: Sequence[Proxy]) -> GradientArrivals:
    """Return when the gradients that a backward returns for `inputs` are final, and their sizes."""
    sizes = (proxy.bytes if isinstance(proxy, TensorProxy) else 0 for proxy in inputs)
    return GradientArrivals(tuple(cut_positions(backward)), tuple(sizes))


def cut_positions(backward: Trace) -> list[int]:
    """Return for each gradient the index of the line after which a piece may return the gradient; -1 for None."""
    following = lines_before_cuts(backward.bound_symbols)
    return [following[end] if 0 <= end < len(following) else end for end in final_positions(backward)]


def lines_before_cuts(bsyms: Sequence[BoundSymbol]) -> list[int]:
    """Return, for each line, the index of the first line at or after it, after which a backward may be cut."""
    following = list(range(len(bsyms)))
    for first, last in inseparable_spans(bsyms):
        following[first] = max(following[first], last)
    following = list(accumulate(following, max))
    for index in reversed(range(len(bsyms))):
        following[index] = following[following[index]]
    return following


def inseparable_spans(bsyms: Sequence[BoundSymbol]) -> Iterator[tuple[int, int]]:
    """Yield the indices of the first and the last line of each span of a backward that must not be cut.

    A span begins with the start of a collective and ends with its wait, or begins with a change of a state of the
    process, such as the state of the random numbers, and ends with the line that restores the state.
    """
    yield from ((start, wait) for wait, start in Waits(bsyms).starts.items())
    makers: dict[str, int] = {}
    for index, bsym in enumerate(bsyms):
        if bsym.ordered:
            yield from ((makers[proxy.name], index) for proxy in bsym.inputs if proxy.name in makers)
            makers |= {proxy.name: index for proxy in bsym.outputs}
    switches = [index for index, bsym in enumerate(bsyms) if _changes_process_state(bsym)]
    if switches:
        yield switches[0], switches[-1]


def _changes_process_state(bsym: BoundSymbol) -> bool:
    """Whether a bound symbol may change a state of the process other than the state of the random numbers."""
    return bsym.ordered and not (bsym.outputs or bsym.mutates) and bsym.symbol.target not in SET_RANDOM_STATE


def final_positions(backward: Trace) -> list[int]:
    """Return for each gradient the index of the last line that uses its memory; -1 for None.

    The code that receives a gradient may write to the gradient, so no later line may read its memory.
    """
    aliasing = alias_sets(backward.bound_symbols, backward.aliases)
    last: dict[str, int] = {}
    for index, bsym in enumerate(backward.bound_symbols):
        last |= {aliasing.representative(proxy.name): index for proxy in (*bsym.inputs, *bsym.defines)}
    return [
        last.get(aliasing.representative(proxy.name), 0) if isinstance(proxy, Proxy) else -1
        for proxy in backward.output
    ]


def cut_into_pieces(backward: Trace, groups: Groups) -> tuple[Trace, ...]:
    """Return the pieces of a backward, one for each group of gradients.

    The inputs of the first piece are the inputs of the backward. A piece returns the gradients of its group, followed
    by the values that later pieces read. These values are the inputs of the next piece.
    """
    bounds = [0, *ends_of_pieces(cut_positions(backward), groups)[:-1], len(backward.bound_symbols)]
    numbers = [proxy.name for proxy in backward.inputs if isinstance(proxy, NumberProxy)]
    piece_inputs: tuple[Proxy, ...] = backward.inputs
    pieces: list[Trace] = []
    for number, (start, end) in enumerate(pairwise(bounds)):
        bsyms = backward.bound_symbols[start:end]
        gradients = [backward.output[position] for position in groups[number]]
        later = {*_names_read(backward, groups[number + 1 :], end), *numbers}
        values = {proxy.name: proxy for proxy in (*piece_inputs, *(proxy for bsym in bsyms for proxy in bsym.defines))}
        passed_on = tuple(proxy for name, proxy in values.items() if name in later)
        made_by = f"cut {number + 1} of {len(groups)}"
        pieces.append(backward.having(bsyms, made_by=made_by, inputs=piece_inputs, output=(*gradients, *passed_on)))
        piece_inputs = passed_on
    return tuple(pieces)


def ends_of_pieces(positions: Sequence[int], groups: Groups) -> list[int]:
    """Return for each group of gradients the number of lines up to the end of its piece."""
    ends = (max((positions[position] for position in group), default=-1) + 1 for group in groups)
    return list(accumulate(ends, max))


def _names_read(backward: Trace, groups: Groups, start: int) -> Iterator[str]:
    """Yield the names that the lines from an index on read, and the names of the gradients of later groups."""
    yield from (proxy.name for bsym in backward.bound_symbols[start:] for proxy in bsym.inputs)
    outputs = (backward.output[position] for group in groups for position in group)
    yield from (proxy.name for proxy in outputs if isinstance(proxy, Proxy))
