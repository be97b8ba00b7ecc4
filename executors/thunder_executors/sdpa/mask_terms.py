"""The terms that boolean masks add to the scores of attention, computed once for all calls with a mask."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import chain
from typing import Any

import torch

from thunder_core.tracing.analysis.aliasing import names_written_to
from thunder_core.tracing.analysis.attention_arguments import arguments_of
from thunder_core.tracing.capture.fakes.fake import empty, new_mode
from thunder_core.tracing.capture.torch_facts.symbols import symbol_of
from thunder_core.tracing.ir.literal import unique_name
from thunder_core.tracing.ir.proxy import TensorProxy, environment_of, tensor_proxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace

TERM = "term"  # the term that a boolean mask adds to the scores, if a line of the program has computed it
MASKED = -65504.0  # the term of a masked score: PyTorch passes no infinities to cuDNN
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
OPPOSITES = {dtype: -float(torch.tensor(MASKED, dtype=dtype)) for dtype in FLOATS}


def bias_of(mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """Return the term that a mask adds to the scores of cuDNN's attention: PyTorch's values, in one launch.

    The sum of `MASKED` and the opposite number, as the dtype rounds them, is exactly zero.
    """
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.add(torch.scalar_tensor(MASKED, dtype=dtype, device="cpu"), mask, alpha=OPPOSITES[dtype])


def share_mask_terms(trace: Trace, executor: str) -> Trace:
    """Return the trace in which the term of a boolean mask is computed once, before all attention with this mask.

    Without this term, each call of attention computes it. Executors may compute the term together with the mask.
    """
    written, used = names_written_to(trace), names_of(trace)
    keys = [mask_key(bsym, executor) for bsym in trace.bound_symbols]
    shared = {key for key, count in Counter(keys).items() if key is not None and count > 1 and key[0] not in written}
    terms: dict[tuple[str, torch.dtype], TensorProxy] = {}
    bsyms: list[BoundSymbol] = []
    for bsym, key in zip(trace.bound_symbols, keys, strict=True):
        if key is None or key not in shared:
            bsyms.append(bsym)
            continue
        if key not in terms:
            bsyms += (term := mask_term(arguments_of(bsym)["attn_mask"], key[1], bsym, used))
            terms[key] = term[-1].output
        bsyms.append(replace(bsym, kwargs={**bsym.kwargs, TERM: terms[key]}))
    return trace.having(bsyms, made_by=f"masks of {executor}") if terms else trace


def names_of(trace: Trace) -> set[str]:
    """Return the names of a trace's inputs, results and constants."""
    proxies = chain(trace.inputs, *(bsym.defines for bsym in trace.bound_symbols))
    return {proxy.name for proxy in proxies} | set(trace.constants)


def mask_key(bsym: BoundSymbol, executor: str) -> tuple[str, torch.dtype] | None:
    """Return the name of the boolean mask of claimed attention and the dtype of its term; None without such a mask."""
    mask = arguments_of(bsym).get("attn_mask") if bsym.executor == executor else None
    is_boolean = isinstance(mask, TensorProxy) and mask.dtype is torch.bool
    return (mask.name, arguments_of(bsym)["query"].dtype) if isinstance(mask, TensorProxy) and is_boolean else None


def term_steps(dtype: torch.dtype) -> tuple[tuple[Any, tuple[float, ...], dict[str, Any]], ...]:
    """Return the operations that turn a boolean mask into its term: 0 for a shown score, `MASKED` for a hidden one."""
    return (
        (torch.ops.aten._to_copy.default, (), {"dtype": dtype}),
        (torch.ops.aten.sub.Tensor, (1,), {}),
        (torch.ops.aten.mul.Tensor, (-MASKED,), {}),
    )


def mask_term(mask: TensorProxy, dtype: torch.dtype, at: BoundSymbol, used: set[str]) -> list[BoundSymbol]:
    """Return bound symbols for the term of a boolean mask, at the source line of attention; add names to `used`."""
    bsyms: list[BoundSymbol] = []
    operand = mask
    for operator, arguments, options in term_steps(dtype):
        with new_mode(environment_of((operand,))):
            fake = operator(empty(operand), *arguments, **options)
        output = tensor_proxy(unique_name(f"{mask.name}_term", used), fake)
        used.add(output.name)
        symbol = symbol_of(operator)
        bsyms.append(BoundSymbol(symbol, (operand, *arguments), options, output, (), at.source, at.module))
        operand = output
    return bsyms
