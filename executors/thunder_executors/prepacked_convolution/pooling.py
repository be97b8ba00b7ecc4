"""Global average pooling in a trace, and the flattening of its result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from thunder_core.tracing.analysis.named_arguments import arguments_by_name
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace
from thunder_executors.prepacked_convolution.chain import is_supported, readers_in

POOLING = "torch.nn.functional.adaptive_avg_pool2d"
FLATTENING = ("torch.flatten", "torch.Tensor.flatten")


@dataclass(frozen=True)
class Pool:
    """A global average pooling of images in channels-last format, with the flattening of its result if there is one.

    `indices` are the positions of these bound symbols in the trace.
    """

    indices: tuple[int, ...]
    x: TensorProxy
    result: TensorProxy


def pools_in(trace: Trace) -> Iterator[Pool]:
    """Yield the poolings of a trace that this executor can compute."""
    readers = readers_in(trace)
    for index, bsym in enumerate(trace.bound_symbols):
        pool = pool_at(bsym, index)
        if pool is None:
            continue
        reader_indices = readers.get(pool.result.name, [])  # `len(trace.bound_symbols)` stands for the outputs
        if len(reader_indices) == 1 and reader_indices[0] < len(trace.bound_symbols):
            pool = with_flattening(trace, pool, reader_indices[0])
        yield pool


def pool_at(bsym: BoundSymbol, index: int) -> Pool | None:
    """Return the pooling that a bound symbol computes; None if this executor does not support it."""
    if bsym.executor or bsym.symbol.name != POOLING or bsym.mutates or not bsym.is_resolved:
        return None
    named = arguments_by_name(bsym, ("input", "output_size"))
    if named is None or len(named) != 2 or named["output_size"] not in (1, (1, 1), [1, 1]):
        return None
    x, result = named["input"], bsym.output
    if not is_supported(x) or not is_supported(result) or len(x.shape) != 4 or not x.is_channels_last:
        return None
    return Pool((index,), x, result) if is_dense(result) else None


def is_dense(result: TensorProxy) -> bool:
    """Whether a result [batch, channels] or [batch, channels, 1, 1] has the strides of a contiguous matrix."""
    return bool(result.stride[1] == 1 and result.stride[0] == result.shape[1])


def with_flattening(trace: Trace, pool: Pool, index: int) -> Pool:
    """Return a pooling with the flattening at an index; the unchanged pooling if no flattening can be included."""
    bsym = trace.bound_symbols[index]
    between = trace.bound_symbols[pool.indices[0] + 1 : index]
    if (
        bsym.executor
        or bsym.symbol.name not in FLATTENING
        or any(step.mutates or step.keeps_position for step in between)
    ):
        return pool
    named = arguments_by_name(bsym, ("input", "start_dim", "end_dim"))
    if named is None:
        return pool
    dims = named.get("start_dim", 0), named.get("end_dim", -1)
    if dims not in ((1, -1), (1, 3)) or not is_supported(bsym.output) or not is_dense(bsym.output):
        return pool
    return replace(pool, indices=(*pool.indices, index), result=bsym.output)
