"""Claim attention of few queries to a cache, as in decoding a token, if the kernel is measured to be faster.

The mask of such an attention shows the same keys to all queries of a sequence. If the mask is proved to show the keys
up to a last key, the kernel reads the index of this key, and the mask is not computed. Otherwise, the kernel reads the
mask. Keys and values that are repeated for groups of queries are read in place.

For an absent GPU nothing can be measured, and the kernel is chosen: it reads no block of hidden keys, while the
kernels of PyTorch read the whole cache.

The batch and the number of keys may be symbolic. Sizes are compared as expressions, which adds no guards. Keys and
values may have different symbols for their length, because attention needs equal lengths: for others, the kernel raises
an error, as PyTorch does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, TypeGuard

import torch

from thunder_core.tracing.analysis.aliasing import names_written_to
from thunder_core.tracing.analysis.attention_arguments import ATTENTION, GROUPS, NAMES, arguments_of
from thunder_core.tracing.analysis.grad_mode import may_be_recorded, tracked_by_autograd
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.sizes import expressions, generic_hint_of, hint_of
from thunder_core.tracing.ir.symbol import BoundSymbol, Symbol
from thunder_core.tracing.ir.trace import Trace
from thunder_executors import sdpa
from thunder_executors.triton.attention.decode_attention import (
    HEADS,
    POSITIONS,
    decode_attention,
    decode_attention_kernel,
    is_one_tile,
)
from thunder_executors.triton.attention.visible_keys import LastKey, last_key, producers_of
from thunder_executors.triton.measurement import OneKernel, always, replace_if_faster
from thunder_executors.triton.rows import is_certain
from thunder_executors.triton.tensors import is_cuda_tensor, is_supported

DIMENSIONS = 4


def attend_by_mask(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    scale: float,
    transposed: bool,
    for_all_sizes: bool = False,
) -> torch.Tensor:
    """Compute attention to the keys that a mask shows."""
    result: torch.Tensor = decode_attention(query, key, value, mask, None, 0, scale, transposed, for_all_sizes)
    return result


def attend_by_length(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    last: torch.Tensor,
    offset: int,
    scale: float,
    transposed: bool,
    for_all_sizes: bool = False,
) -> torch.Tensor:
    """Compute attention to the keys up to `last + offset`."""
    result: torch.Tensor = decode_attention(query, key, value, None, last, offset, scale, transposed, for_all_sizes)
    return result


FUNCTIONS = (attend_by_mask, attend_by_length)


@dataclass(frozen=True)
class CacheAttention(OneKernel):
    """A call of attention to a cache: the proxies of its operands, and the bound symbols that become one with it.

    `transposed` states whether the result is a view of a contiguous tensor (batch, positions, heads, width).
    """

    query: TensorProxy
    key: TensorProxy
    value: TensorProxy
    mask: TensorProxy
    scale: float
    transposed: bool
    last: LastKey | None
    repeating: tuple[int, ...]

    @property
    def proxies(self) -> tuple[TensorProxy, ...]:
        """The proxies of the operands of a measurement, in which the mask shows all keys."""
        return (self.query, self.key, self.value, self.mask)

    @property
    def title(self) -> str:
        """The computation in words: `attention of 1 x 32 x 1 queries of width 64 to 8 x 4096 keys, in bfloat16`."""
        batch, heads, positions, width = map(hint_of, self.query.shape)
        groups, keys, value_width = map(hint_of, self.value.shape[HEADS:])
        widths = f"{width}" if width == value_width else f"{width} and {value_width}"
        dtypes = dict.fromkeys(str(proxy.dtype).removeprefix("torch.") for proxy in (self.query, self.mask))
        queries = f"{batch} x {heads} x {positions} queries of width {widths}"
        sizes = "for all sizes, " if self.is_for_all_sizes else ""
        return f"attention of {queries} to {groups} x {keys} keys, {sizes}in {', '.join(dtypes)}"

    @property
    def source(self) -> str:
        """The digest of the kernel's source."""
        return str(getattr(decode_attention_kernel, "cache_key", ""))

    @property
    def is_chosen_without_gpu(self) -> bool:
        """Whether the kernel is chosen if nothing can be measured: always."""
        return True

    @property
    def is_for_all_sizes(self) -> bool:
        """Whether the batch or the number of keys is symbolic."""
        return not are_constant((*self.query.shape, *self.key.shape, *self.value.shape))

    @property
    def is_grouped(self) -> bool:
        """Whether a head of keys serves several heads of queries."""
        return bool(self.query.shape[HEADS] != self.key.shape[HEADS])

    def kernel(self, *operands: torch.Tensor) -> torch.Tensor:
        """Run the computation by the kernel, which reads the mask."""
        query, key, value, mask = operands
        return attend_by_mask(query, key, value, mask, self.scale, self.transposed, self.is_for_all_sizes)

    def library(self, *operands: torch.Tensor) -> torch.Tensor:
        """Run the computation by PyTorch."""
        if self.is_grouped:
            return sdpa.grouped_attention(*operands, scale=self.scale, enable_gqa=True)
        return sdpa.attention(*operands, scale=self.scale)

    def bound_symbol(self, bsyms: Sequence[BoundSymbol], bsym: BoundSymbol, executor: str) -> BoundSymbol:
        """Return the call of the kernel; `bsym` is the call of attention, in a trace with `bsyms`."""
        tensors = (self.query, self.key, self.value)
        function: Any = attend_by_mask if self.last is None else attend_by_length
        shown = (self.mask,) if self.last is None else (self.last.number, self.last.offset)
        indices = sorted({*self.repeating, *(() if self.last is None else self.last.indices)})
        return replace(
            bsym,
            symbol=Symbol.of_function(function),
            args=(*tensors, *shown, self.scale, self.transposed, *([True] if self.is_for_all_sizes else [])),
            kwargs={},
            subsymbols=(*(bsyms[index] for index in indices), bsym),
            executor=executor,
        )


def claim_cache_attention(trace: Trace, executor: str) -> Trace:
    """Return the trace with the kernel in place of the calls of attention to a cache that it computes faster."""
    if not any(is_unclaimed(bsym) for bsym in trace.bound_symbols):
        return trace
    bsyms = trace.bound_symbols
    calls = dict(attentions_in(trace))
    groups = [
        ((call,), always({bsyms[index]: [call.bound_symbol(bsyms, bsyms[index], executor)]}))
        for index, call in calls.items()
    ]
    claimed = replace_if_faster(trace, executor, groups)
    own = [bsym for bsym in claimed.bound_symbols if bsym.executor == executor and bsym.symbol.target in FUNCTIONS]
    return without_unread(
        claimed, {proxy.name for bsym in own for part in bsym.subsymbols[:-1] for proxy in part.defines}
    )


def is_unclaimed(bsym: BoundSymbol) -> bool:
    """Whether a bound symbol is a call of attention that no executor has claimed."""
    return bsym.symbol.name == ATTENTION and not bsym.executor


def without_unread(trace: Trace, joined: set[str]) -> Trace:
    """Return the trace without the bound symbols that only compute names in `joined`, which nothing else reads."""
    read = {proxy.name for proxy in trace.outputs}
    kept: list[BoundSymbol] = []
    for bsym in reversed(trace.bound_symbols):
        names = {proxy.name for proxy in bsym.defines}
        if not names or names - joined or names & read:
            kept.append(bsym)
            read.update(proxy.name for proxy in bsym.inputs)
    return trace.having(reversed(kept), made_by=trace.made_by) if joined else trace


def attentions_in(trace: Trace) -> Iterator[tuple[int, CacheAttention]]:
    """Yield each call of attention that the kernel supports, with its index. Autograd must not record the calls."""
    bsyms = trace.bound_symbols
    recorded = may_be_recorded(trace, tracked_by_autograd(trace))
    written, operations = names_written_to(trace), producers_of(bsyms)
    producers = {proxy.name: index for index, bsym in enumerate(bsyms) for proxy in bsym.defines}
    for index, bsym in enumerate(bsyms):
        if is_unclaimed(bsym) and bsym.is_resolved and not recorded[index]:
            repeating = sdpa.repeats_of(bsyms, producers, bsym)
            is_unwritten = not any(inner.mutates for inner in bsyms[min(repeating, default=index) : index])
            attention = attention_of(bsyms, bsym, repeating if is_unwritten else [])
            if attention is not None:
                yield index, replace(attention, last=last_key(bsyms, operations, attention.mask, written))


def attention_of(bsyms: Sequence[BoundSymbol], bsym: BoundSymbol, repeating: Sequence[int]) -> CacheAttention | None:
    """Return a call of attention, if the kernel supports its arguments; `repeating` repeats its keys and values."""
    arguments = arguments_of(bsym)
    query, key, value, mask = (arguments.get(name) for name in NAMES[:4])
    if repeating:
        key, value = (bsyms[index].inputs[0] for index in (repeating[0], repeating[len(sdpa.REPEATS)]))
    if is_random_or_causal(arguments) or not (has_heads(query) and has_heads(key) and has_heads(value)):
        return None
    if not are_constant(query.shape[HEADS:]):
        return None
    has_groups = bool(repeating) or arguments.get(GROUPS, False) is True
    if not (is_mask(mask, query, key, value) and are_sizes_supported(query, key, value, has_groups)):
        return None
    is_cast = {proxy.dtype for proxy in (query, key, value, bsym.output)} != {query.dtype}
    scale = arguments.get("scale")
    scale = query.shape[3] ** -0.5 if scale is None else scale
    transposed = is_transposed(bsym.output)
    if is_cast or type(scale) not in (int, float) or transposed is None:
        return None
    return CacheAttention(query, key, value, mask, float(scale), transposed, None, tuple(repeating))


def has_heads(proxy: object) -> TypeGuard[TensorProxy]:
    """Whether a value is a tensor (batch, heads, positions, width), with constant heads and width, and dense rows."""
    return (
        isinstance(proxy, TensorProxy)
        and is_supported(proxy)
        and len(proxy.shape) == DIMENSIONS
        and are_constant((proxy.shape[HEADS], proxy.shape[3], proxy.stride[3]))
        and all(is_certain(size > 0) for size in proxy.shape)
        and proxy.stride[3] == 1
    )


def are_constant(sizes: Sequence[object]) -> bool:
    """Whether no size is symbolic."""
    return all(type(size) is int for size in sizes)


def is_mask(mask: object, query: TensorProxy, key: TensorProxy, value: TensorProxy) -> TypeGuard[TensorProxy]:
    """Whether a value is a mask of the keys or values, which is equal for all heads and queries of a sequence."""
    if not (isinstance(mask, TensorProxy) and (is_supported(mask) or is_cuda_tensor(mask, torch.bool))):
        return False
    shapes = product((1, query.shape[0]), (1,), (1,), (key.shape[POSITIONS], value.shape[POSITIONS]))
    return expressions(mask.shape) in [expressions(shape) for shape in shapes]


def is_random_or_causal(arguments: Mapping[str, Any]) -> bool:
    """Whether attention drops weights at random, or has a causal mask."""
    dropout = arguments.get("dropout_p", 0.0)
    return type(dropout) not in (int, float) or dropout != 0 or arguments.get("is_causal", False) is not False


def are_sizes_supported(query: TensorProxy, key: TensorProxy, value: TensorProxy, has_groups: bool) -> bool:
    """Whether the sizes of query, key and value fit together, with few queries for each head of keys."""
    (batch, heads, _, width), (_, groups, keys, _) = query.shape, key.shape
    shape = expressions((batch, groups, keys, width))
    return (
        (heads == groups or (has_groups and heads % groups == 0))
        and expressions(key.shape) == shape
        and expressions(value.shape[:POSITIONS]) == shape[:POSITIONS]
        and hint_of(value.shape[POSITIONS]) == hint_of(keys)
        and is_one_tile(query.shape, value.shape, query.dtype.itemsize)
    )


def is_transposed(output: TensorProxy) -> bool | None:
    """Whether a result is a transposed view of a contiguous tensor; None if it has neither layout."""
    if not are_constant((*output.shape[HEADS:], *output.stride)):
        return None
    layout = torch.empty_strided(tuple(map(generic_hint_of, output.shape)), output.stride, device="meta")
    if layout.is_contiguous():
        return False
    return True if layout.transpose(HEADS, POSITIONS).is_contiguous() else None
