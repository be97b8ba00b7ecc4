"""The memory budget: the backward recomputes pieces of the forward until the forward saves few enough bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from thunder_core.passes.autodiff.recomputation.recompute_units import block_of
from thunder_core.passes.autodiff.recomputation.rematerialization import Rematerialized, rematerialize
from thunder_core.tracing.analysis.cuts import divide
from thunder_core.tracing.analysis.storages import Storages, size_of
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.trace import Trace


def fit_budget(
    budget: float, usual: Rematerialized, forward: Trace, needed: Sequence[TensorProxy], results: int, *, cheap: bool
) -> Rematerialized:
    """Return a forward that saves at most `budget` bytes.

    A budget up to 1 is a fraction of the bytes that `usual` saves. The pieces are the repeated parts of the
    computation, such as the layers of a transformer. The first pieces are recomputed, as many as the budget requires;
    if the budget cannot be met, all are. Of a recomputed piece, only the tensors that other pieces read are saved.
    Outside the recomputed pieces, the forward saves the same tensors as `usual`: cheap operations are recomputed if
    `cheap` is set.
    """
    most = saved_bytes(usual)
    limit = budget if budget > 1 else budget * most
    pieces = [piece for piece in _pieces(forward) if not _is_marked(forward, piece)]
    fitted, recomputed = usual, 0
    while saved_bytes(fitted) > limit and recomputed < len(pieces):
        excess = (saved_bytes(fitted) - limit) / most
        recomputed = min(len(pieces), recomputed + max(1, math.floor(excess * len(pieces))))
        fitted = rematerialize(_mark_blocks(forward, pieces[:recomputed]), needed, results, cheap=cheap)
    return fitted


def saved_bytes(rematerialized: Rematerialized) -> int:
    """Return the bytes that a forward saves, without its inputs and tensors that share memory with the inputs."""
    storages = Storages()
    for proxy in rematerialized.forward.inputs:
        if isinstance(proxy, TensorProxy):
            storages.make(proxy.name, size_of(proxy))
            storages.pin(proxy.name)
    for bsym in rematerialized.forward.bound_symbols:
        storages.enter(bsym)
    return storages.size(proxy.name for proxy in rematerialized.saved)


def _pieces(forward: Trace) -> list[range]:
    """Divide the bound symbols into pieces: repeated parts, or else pieces of about equal length.

    With n bound symbols in k equal pieces, memory has to hold the results of the k pieces, and the n/k values of the
    piece that is being recomputed. The sum k + n/k is minimal if k is the square root of n (Chen et al., "Training Deep
    Nets with Sublinear Memory Cost", 2016).
    """
    count = len(forward.bound_symbols)
    even = max(1, math.isqrt(count))
    pieces = [range(0)]
    for piece in divide(forward.bound_symbols):
        joined = len(pieces[-1]) < even // 2
        if joined:
            pieces[-1] = range(pieces[-1].start, piece.stop)
        else:
            pieces.append(piece)
    if len(pieces) > 2:
        return pieces
    return [range(start, min(start + even, count)) for start in range(0, count, even)]


def _is_marked(forward: Trace, piece: range) -> bool:
    """Whether a bound symbol of a piece is already in a block (a checkpointed function) of the program."""
    bsyms = forward.bound_symbols[piece.start : piece.stop]
    return bool(forward.blocks) and any(block_of(bsym, forward.blocks) >= 0 for bsym in bsyms)


def _mark_blocks(forward: Trace, pieces: Sequence[range]) -> Trace:
    """Return the forward with each of these pieces marked as a block, so that it is recomputed."""
    first = 1 + max(forward.blocks.values(), default=-1)
    blocks = {
        proxy.name: number
        for number, piece in enumerate(pieces, start=first)
        for bsym in forward.bound_symbols[piece.start : piece.stop]
        for proxy in bsym.defines
    }
    return forward.having(forward.bound_symbols, made_by=forward.made_by, blocks={**blocks, **forward.blocks})
