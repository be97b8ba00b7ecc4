"""Score and mask functions of flex attention as functions of one element, for executors that have a kernel for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from thunder_core.foundation import plugins
from thunder_core.foundation.errors import ThunderError
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.tracing.capture.torch_facts.symbols import symbol_of
from thunder_core.tracing.ir.attention import ElementFunction, FlexAttention, identity_of
from thunder_core.tracing.ir.proxy import Proxy, TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.tree import replace_leaves

INDEX_DTYPE = torch.int32  # of the batch, head, query and key indices that the functions receive
# The mode that lets a program index a tensor with zero-dimensional tensors. It is imported only when it is needed,
# because importing Dynamo takes long.
INDEXING_MODE = "torch._dynamo._trace_wrapped_higher_order_op:TransformGetItemToIndex"
SCALAR = torch.ops.aten.scalar_tensor.default
QUERY_BLOCKS = slice(6, 10)  # the part of a block mask's tuple that only a backward reads
MASK_INDEX = -1  # the index of the function in a block mask's tuple


class OperatorArguments(NamedTuple):
    """The arguments of the flex attention operator."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    score: Callable[..., Any]
    block_mask: Sequence[Any]
    scale: float
    options: Mapping[str, Any]


def attention_of(run: TracedRun, call: OperatorArguments, start: int) -> FlexAttention | None:
    """Return a call of flex attention as one operation.

    Returns None if the score or mask function cannot be traced as ATen operations on one element, or if a size is
    symbolic.

    The bound symbols of the call are those from `start` on. The functions are interpreted a second time, so they must
    have no effects.
    """
    identities = frozenset(map(identity_of, run.recorder.bound_symbols[start:]))
    dtype, device = call.query.dtype, call.query.device
    score = element_function(run, call.score, [dtype, *[INDEX_DTYPE] * 4], device)
    mask = element_function(run, call.block_mask[MASK_INDEX], [INDEX_DTYPE] * 4, device)
    if score is None or mask is None:
        return None
    proxy_of = run.recorder.proxy_of
    query, key, value = (proxy_of(tensor) for tensor in (call.query, call.key, call.value))
    parts = [*call.block_mask[:MASK_INDEX]]
    parts[QUERY_BLOCKS] = [None] * len(parts[QUERY_BLOCKS])
    layout = tuple(proxy_of(part) if isinstance(part, torch.Tensor) else part for part in parts)
    numbers = [part for part in layout if part is not None and not isinstance(part, TensorProxy)]
    numbers += [size for proxy in (query, key, value) for size in proxy.shape]
    if not all(type(number) is int for number in numbers) or type(call.scale) is not float:
        return None
    return FlexAttention(query, key, value, score, mask, layout, call.scale, dict(call.options), identities)


def element_function(
    run: TracedRun, function: Callable[..., Any], dtypes: Sequence[torch.dtype], device: torch.device
) -> ElementFunction | None:
    """Trace a function of zero-dimensional tensors without keeping its bound symbols; None if that is impossible."""
    recorder = run.recorder
    start, failure = len(recorder.bound_symbols), recorder.failure
    proxies = [TensorProxy(recorder.tensors.next_name(), (), (), dtype, device) for dtype in dtypes]
    with torch._C.DisableTorchFunction():
        elements = [recorder.tensors.new_tensor(proxy) for proxy in proxies]
    try:
        indexing: Any = plugins.import_object(INDEXING_MODE)
        with indexing():
            output = run.machine.call(function, *elements)
        bsyms = recorder.bound_symbols[start:]
        proxy = recorder.proxy_of(output) if isinstance(output, torch.Tensor) else None
    except (ThunderError, RuntimeError, TypeError, ValueError):
        # The attention stays in the trace as the bound symbols for all elements.
        recorder.reset_failure(failure)
        return None
    finally:
        recorder.replace_from(start, ())
    operations = [operation for bsym in map(with_operations, bsyms) for operation in bsym.operations]
    is_known = all(bsym.operations and not bsym.has_effect for bsym in map(with_operations, bsyms))
    return None if proxy is None or proxy.shape or not is_known else canonical(proxies, operations, proxy)


def with_operations(bsym: BoundSymbol) -> BoundSymbol:
    """Return the bound symbol. Replace `torch.tensor` of a number by the ATen operation that makes the tensor."""
    value = bsym.args[0] if bsym.symbol.target is torch.tensor else None
    if type(value) not in (int, float, bool):
        return bsym
    return replace(bsym, symbol=symbol_of(SCALAR), kwargs={"dtype": bsym.output.dtype}, subsymbols=())


def canonical(
    parameters: Sequence[TensorProxy], operations: Sequence[BoundSymbol], output: TensorProxy
) -> ElementFunction | None:
    """Return the function with canonical names; None if it reads unknown numbers, or returns a captured tensor."""
    defined = {proxy.name for operation in operations for proxy in operation.defines} | {
        proxy.name for proxy in parameters
    }
    read = {proxy.name: proxy for operation in operations for proxy in operation.inputs if proxy.name not in defined}
    captured = tuple(proxy for proxy in read.values() if isinstance(proxy, TensorProxy))
    if len(captured) < len(read) or (output.name not in defined):
        return None
    names: dict[str, Proxy] = {}
    for stem, proxies in (
        ("e", parameters),
        ("c", captured),
        ("v", [p for operation in operations for p in operation.defines]),
    ):
        for index, proxy in enumerate(proxies):
            if not isinstance(proxy, TensorProxy):
                return None
            names.setdefault(proxy.name, proxy.with_name(f"{stem}{index}"))
    renamed = tuple(replace(operation.rename(names, at=(None, "")), subsymbols=()) for operation in operations)
    inputs = tuple(names[proxy.name] for proxy in (*parameters, *captured))
    lines = [*map(describe, inputs), *map(text_of, renamed), f"return {names[output.name].name}"]
    return ElementFunction("; ".join(lines), inputs, renamed, names[output.name], captured)  # type: ignore[arg-type]


def text_of(operation: BoundSymbol) -> str:
    """Return the text of an operation, which is the same for equal operations."""
    arguments = (operation.args, dict(operation.kwargs))
    named = replace_leaves(arguments, lambda leaf: f"%{leaf.name}" if isinstance(leaf, Proxy) else leaf)
    results = " ".join(proxy.name for proxy in operation.defines)
    return f"{results} = {operation.symbol.name} {named!r}"


def describe(proxy: Proxy) -> str:
    """Return the metadata of an input as text."""
    assert isinstance(proxy, TensorProxy)
    return f"{proxy.name}: {proxy.dtype} {proxy.shape} {proxy.stride}"
