"""The cut of a backward into pieces: each piece returns the gradients of one group of inputs as soon as they are final.

The pieces are the lines of the backward that executors have claimed, in the same order, so the gradients are the same
bit by bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

from thunder_core.backend.parallel.buckets import BucketSizes
from thunder_core.tracing.analysis.aliasing import alias_sets
from thunder_core.tracing.ir.proxy import NumberProxy, Proxy
from thunder_core.tracing.ir.trace import Trace

Groups = tuple[tuple[int, ...], ...]  # the positions of gradients in the output of a backward, in the order of pieces


def can_be_cut(backward: Trace) -> bool:
    """Whether a backward may be cut: no line depends on a state of the process, and no collective is in flight."""
    return not any(bsym.ordered or bsym.communicates for bsym in backward.bound_symbols)


def groups_of_gradients(backward: Trace, sizes: Sequence[int], buckets: BucketSizes) -> Groups:
    """Divide the gradients that a backward returns into groups with the sizes of buckets, in the order of the backward.

    `sizes` are the bytes of the gradients. A gradient that is None belongs to the first group.
    """
    ends = final_positions(backward)
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
    positions = final_positions(backward)
    ends = accumulate((max((positions[position] for position in group), default=-1) + 1 for group in groups), max)
    bounds = [0, *list(ends)[:-1], len(backward.bound_symbols)]
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


def _names_read(backward: Trace, groups: Groups, start: int) -> Iterator[str]:
    """Yield the names that the lines from an index on read, and the names of the gradients of later groups."""
    yield from (proxy.name for bsym in backward.bound_symbols[start:] for proxy in bsym.inputs)
    outputs = (backward.output[position] for group in groups for position in group)
    yield from (proxy.name for proxy in outputs if isinstance(proxy, Proxy))
