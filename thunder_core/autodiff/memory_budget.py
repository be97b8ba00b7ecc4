"""A budget for the bytes that a forward saves: blocks of it are recomputed, the first ones first, until it is kept."""

from __future__ import annotations

import math
from collections.abc import Sequence

from thunder_core.analysis.cuts import divided
from thunder_core.analysis.storages import Storages, size_of
from thunder_core.autodiff.recompute_units import block_of
from thunder_core.autodiff.rematerialization import Rematerialized, rematerialize
from thunder_core.ir.proxy import TensorProxy
from thunder_core.ir.trace import Trace


def fit_budget(
    budget: float, usual: Rematerialized, forward: Trace, needed: Sequence[TensorProxy], results: int, *, cheap: bool
) -> Rematerialized:
    """The forward that saves at most a part of what `usual` saves, or a number of bytes; the least where none fits.

    The blocks are the periods of what repeats in the computation, which for a transformer are its layers: what is
    saved of one is what the next ones read. Outside them, what is cheap is recomputed as in `usual`.
    """
    most = saved_bytes(usual)
    limit = budget if budget > 1 else budget * most
    pieces = [piece for piece in _pieces(forward) if not _is_marked(forward, piece)]
    fitted, taken = usual, 0
    while saved_bytes(fitted) > limit and taken < len(pieces):
        over = (saved_bytes(fitted) - limit) / most
        taken = min(len(pieces), taken + max(1, math.floor(over * len(pieces))))
        fitted = rematerialize(_marked(forward, pieces[:taken]), needed, results, cheap=cheap)
    return fitted


def saved_bytes(done: Rematerialized) -> int:
    """The bytes that a forward saves, apart from its inputs and what shares their memory."""
    storages = Storages()
    for proxy in done.forward.inputs:
        if isinstance(proxy, TensorProxy):
            storages.make(proxy.name, size_of(proxy))
            storages.pin(proxy.name)
    for bsym in done.forward.bound_symbols:
        storages.enter(bsym)
    return storages.size(proxy.name for proxy in done.saved)


def _pieces(forward: Trace) -> list[range]:
    """The bound symbols in pieces: between the cuts at which equal stretches come out, else of about equal length.

    Of n bound symbols in k pieces the pieces' ends are saved and one piece at a time is alive; the sum is least where k
    is the root of n (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016).
    """
    count = len(forward.bound_symbols)
    even = max(1, math.isqrt(count))
    pieces = [range(0)]
    for piece in divided(forward.bound_symbols):
        joined = len(pieces[-1]) < even // 2
        if joined:
            pieces[-1] = range(pieces[-1].start, piece.stop)
        else:
            pieces.append(piece)
    if len(pieces) > 2:
        return pieces
    return [range(start, min(start + even, count)) for start in range(0, count, even)]


def _is_marked(forward: Trace, piece: range) -> bool:
    """Whether the program has made a block (a checkpointed function) of some bound symbol already."""
    bsyms = forward.bound_symbols[piece.start : piece.stop]
    return bool(forward.blocks) and any(block_of(bsym, forward.blocks) >= 0 for bsym in bsyms)


def _marked(forward: Trace, pieces: Sequence[range]) -> Trace:
    first = 1 + max(forward.blocks.values(), default=-1)
    blocks = {
        proxy.name: number
        for number, piece in enumerate(pieces, start=first)
        for bsym in forward.bound_symbols[piece.start : piece.stop]
        for proxy in bsym.defines
    }
    return forward.having(forward.bound_symbols, made_by=forward.made_by, blocks={**blocks, **forward.blocks})
