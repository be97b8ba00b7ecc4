"""Flex attention as one region: a kernel runs in place of the bound symbols that compute the attention."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import torch

from thunder_core.backend.fusion.fuse import Fused, FusionExecutor, Refusal, region_bound_symbol
from thunder_core.backend.fusion.region import RegionOccurrence, region_occurrence
from thunder_core.tracing.analysis.grad_mode import tracked_by_autograd
from thunder_core.tracing.ir.attention import FlexAttention, identity_of
from thunder_core.tracing.ir.proxy import Proxy, TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol, Symbol
from thunder_core.tracing.ir.trace import RefusedOperations, Trace

OPERATOR = Symbol("torch.ops.higher_order.flex_attention", torch.ops.higher_order.flex_attention)
COPY = "torch.Tensor.copy_"
OTHER_RESULTS_ARE_READ = "the program reads more results of flex attention than the kernel computes"


def claim_attention(trace: Trace, executor: FusionExecutor) -> Trace:
    """Return the trace in which one region replaces the bound symbols of each flex attention that compiles."""
    indices_by_name = {name: indices_of(trace, name, attention) for name, attention in trace.attentions.items()}
    occurrences = {name: occurrence_of(trace, indices, name) for name, indices in indices_by_name.items() if indices}
    regions = {occurrence.region.digest: occurrence.region for occurrence in occurrences.values()}
    compiled = dict(zip(regions, executor.compile(list(regions.values())), strict=True)) if regions else {}
    fused = [digest for digest, result in compiled.items() if isinstance(result, Fused)]
    symbols = {digest: _symbol(compiled[digest], f"attention_{number}") for number, digest in enumerate(fused)}
    refused = list(trace.refused)
    replaced: dict[int, list[BoundSymbol]] = {}
    for name, indices in indices_by_name.items():
        result = compiled[occurrences[name].region.digest] if indices else Refusal(OTHER_RESULTS_ARE_READ, lasting=True)
        if isinstance(result, Refusal):
            refused.append(RefusedOperations(executor.name, result.reason, max(1, len(indices)), result.lasting))
            continue
        claimed = region_bound_symbol(occurrences[name], symbols[occurrences[name].region.digest], executor.name)
        replaced |= {**{index: [] for index in indices}, max(indices): [claimed]}
    bsyms = [new for index, bsym in enumerate(trace.bound_symbols) for new in replaced.get(index, [bsym])]
    bsyms = read_bound_symbols(bsyms, trace.outputs) if replaced else bsyms
    return trace.having(bsyms, made_by=f"claim attention by {executor.name}", refused=tuple(refused))


def _symbol(result: Fused | Refusal, name: str) -> Symbol:
    assert isinstance(result, Fused)
    return Symbol(name, result.function(name), result.empties)


def occurrence_of(trace: Trace, indices: Collection[int], name: str) -> RegionOccurrence:
    """Return an occurrence of a region with one operation, the flex attention that makes `name`, at the indices."""
    attention = trace.attentions[name]
    bsyms = tuple(trace.bound_symbols[index] for index in sorted(indices))
    result = next(proxy for bsym in bsyms for proxy in bsym.defines if proxy.name == name)
    operation = BoundSymbol(OPERATOR, attention.arguments, {}, result, module=bsyms[0].module, fresh=True)
    occurrence = region_occurrence([operation])
    return replace(occurrence.returning(occurrence.defined), bsyms=bsyms)


def indices_of(trace: Trace, name: str, attention: FlexAttention) -> set[int]:
    """Return the indices of the bound symbols that compute a flex attention and nothing else.

    The inputs of the operation exist before the first of these indices, and no bound symbol between them has an effect.
    The result is empty if the bound symbols of the attention cannot be separated from others.
    """
    bsyms = trace.bound_symbols
    makers = {proxy.name: index for index, bsym in enumerate(bsyms) for proxy in bsym.defines}
    names_of_attention = {proxy.name for proxy in tensors_of(attention)}
    defined_before = {proxy.name for proxy in trace.inputs} | trace.constants.keys()
    if (
        name not in makers
        or not names_of_attention <= defined_before | makers.keys()
        or name in tracked_by_autograd(trace)
    ):
        return set()
    result = next(proxy for proxy in bsyms[makers[name]].defines if proxy.name == name)
    if not isinstance(result, TensorProxy) or result.dtype is not attention.query.dtype:
        return set()
    indices = _backward_slice(
        bsyms, {proxy.name for proxy in trace.outputs} | names_of_attention, attention, makers[name]
    )
    inside = [bsyms[index] for index in indices]
    defined = {proxy.name for bsym in inside for proxy in bsym.defines}
    outside_inputs = [
        proxy for bsym in inside for proxy in bsym.inputs if proxy.name not in defined | names_of_attention
    ]
    softmax = any("softmax" in bsym.symbol.short_name for bsym in inside)
    if not softmax or any(is_scores(proxy, attention) for proxy in outside_inputs):
        return set()
    between = (bsyms[index] for index in range(min(indices), max(indices)) if index not in indices)
    return set() if any(bsym.has_effect for bsym in between) else indices


def tensors_of(attention: FlexAttention) -> list[Proxy]:
    """Return the tensors of the trace that a flex attention reads."""
    operation = BoundSymbol(OPERATOR, attention.arguments, {}, None)
    return list(operation.inputs)


def is_scores(proxy: Proxy, attention: FlexAttention) -> bool:
    """Whether a tensor has one floating-point number for each pair of query and key of each head."""
    if not isinstance(proxy, TensorProxy) or not proxy.dtype.is_floating_point:
        return False
    *batches, rows, _ = attention.query.shape
    return proxy.shape == (*batches, rows, attention.key.shape[-2])


def _backward_slice(
    bsyms: Sequence[BoundSymbol], names_of_attention: Collection[str], attention: FlexAttention, index: int
) -> set[int]:
    """Return the indices of the bound symbols up to `index` whose results are only used for the attention's result.

    This includes a following copy of the result into another tensor. Bound symbols that a transform has changed are not
    included.
    """
    readers: dict[str, set[int]] = {}
    for number, bsym in enumerate(bsyms):
        for proxy in bsym.inputs:
            readers.setdefault(proxy.name, set()).add(number)
    indices = {index}
    following = bsyms[index + 1] if index + 1 < len(bsyms) else None
    if following is not None and following.symbol.name == COPY and belongs_to(following, attention):
        indices.add(index + 1)
    for number in range(index - 1, -1, -1):
        bsym = bsyms[number]
        names = [proxy.name for proxy in bsym.defines]
        is_inner = all(readers.get(name, set()) <= indices and name not in names_of_attention for name in names)
        if is_inner and any(readers.get(name) for name in names) and belongs_to(bsym, attention):
            indices.add(number)
    return indices


def belongs_to(bsym: BoundSymbol, attention: FlexAttention) -> bool:
    """Whether a bound symbol was recorded for a flex attention, and is not claimed."""
    return not bsym.executor and identity_of(bsym) in attention.identities


def read_bound_symbols(bsyms: Sequence[BoundSymbol], outputs: Iterable[Proxy]) -> list[BoundSymbol]:
    """Return the bound symbols that have an effect, or whose results are returned or read by another of them."""
    read = {proxy.name for proxy in outputs}
    live: list[BoundSymbol] = []
    for bsym in reversed(bsyms):
        if bsym.has_effect or not bsym.defines or any(proxy.name in read for proxy in bsym.outputs):
            live.append(bsym)
            read |= {proxy.name for proxy in bsym.inputs}
    return live[::-1]
