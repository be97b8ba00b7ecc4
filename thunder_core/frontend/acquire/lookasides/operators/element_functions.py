"""Score and mask functions of flex attention as functions of one element, for executors that have a kernel for it."""

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

INDEX = torch.int32
INDEXING = "torch._dynamo._trace_wrapped_higher_order_op:TransformGetItemToIndex"  # Dynamo takes long to import
SCALAR = torch.ops.aten.scalar_tensor.default
QUERY_BLOCKS = slice(6, 10)  # in a block mask's tuple the numbers and indices that a backward reads
MASK = -1  # in a block mask's tuple the place of its function


class OperatorArguments(NamedTuple):
    """The arguments of the operator."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    score: Callable[..., Any]
    block_mask: Sequence[Any]
    scale: float
    options: Mapping[str, Any]


def attention_of(acquisition: TracedRun, call: OperatorArguments, start: int) -> FlexAttention | None:
    """The call as one operation; None where a function is not one of an element, by aten operations.

    Its bound symbols are those from `start` on. The functions are interpreted once more, which is for those without
    effects.
    """
    identities = frozenset(map(identity_of, acquisition.recorder.bound_symbols[start:]))
    dtype, device = call.query.dtype, call.query.device
    score = element_function(acquisition, call.score, [dtype, *[INDEX] * 4], device)
    mask = element_function(acquisition, call.block_mask[MASK], [INDEX] * 4, device)
    if score is None or mask is None:
        return None
    proxy_of = acquisition.recorder.proxy_of
    query, key, value = (proxy_of(tensor) for tensor in (call.query, call.key, call.value))
    parts = [*call.block_mask[:MASK]]
    parts[QUERY_BLOCKS] = [None] * len(parts[QUERY_BLOCKS])
    layout = tuple(proxy_of(part) if isinstance(part, torch.Tensor) else part for part in parts)
    numbers = [part for part in layout if part is not None and not isinstance(part, TensorProxy)]
    numbers += [size for proxy in (query, key, value) for size in proxy.shape]
    if not all(type(number) is int for number in numbers) or type(call.scale) is not float:
        return None
    return FlexAttention(query, key, value, score, mask, layout, call.scale, dict(call.options), identities)


def element_function(
    acquisition: TracedRun, function: Callable[..., Any], dtypes: Sequence[torch.dtype], device: torch.device
) -> ElementFunction | None:
    """A function of tensors without dimensions, whose bound symbols do not stay in the trace; None where it is none."""
    recorder = acquisition.recorder
    start, failure = len(recorder.bound_symbols), recorder.failure
    proxies = [TensorProxy(recorder.tensors.next_name(), (), (), dtype, device) for dtype in dtypes]
    with torch._C.DisableTorchFunction():
        elements = [recorder.tensors.made_tensor(proxy) for proxy in proxies]
    try:
        indexing: Any = plugins.imported(INDEXING)
        with indexing():
            output = acquisition.machine.call(function, *elements)
        bsyms = recorder.bound_symbols[start:]
        proxy = recorder.proxy_of(output) if isinstance(output, torch.Tensor) else None
    except (
        ThunderError,
        RuntimeError,
        TypeError,
        ValueError,
    ):  # the bound symbols for all elements are there all the same
        recorder.failure = failure
        return None
    finally:
        recorder.replace_from(start, ())
    operations = [one for bsym in map(with_operations, bsyms) for one in bsym.operations]
    is_known = all(bsym.operations and not bsym.has_effect for bsym in map(with_operations, bsyms))
    return None if proxy is None or proxy.shape or not is_known else canonical(proxies, operations, proxy)


def with_operations(bsym: BoundSymbol) -> BoundSymbol:
    """The bound symbol, one that makes a tensor of a number as the operation that does so."""
    value = bsym.args[0] if bsym.symbol.target is torch.tensor else None
    if type(value) not in (int, float, bool):
        return bsym
    return replace(bsym, symbol=symbol_of(SCALAR), kwargs={"dtype": bsym.output.dtype}, subsymbols=())


def canonical(
    parameters: Sequence[TensorProxy], operations: Sequence[BoundSymbol], output: TensorProxy
) -> ElementFunction | None:
    """The function in names of its own; None where it reads numbers that are not known, or returns what it is given."""
    made = {proxy.name for one in operations for proxy in one.defines} | {proxy.name for proxy in parameters}
    read = {proxy.name: proxy for one in operations for proxy in one.inputs if proxy.name not in made}
    captured = tuple(proxy for proxy in read.values() if isinstance(proxy, TensorProxy))
    if len(captured) < len(read) or (output.name not in made):
        return None
    names: dict[str, Proxy] = {}
    for stem, proxies in (("e", parameters), ("c", captured), ("v", [p for one in operations for p in one.defines])):
        for place, proxy in enumerate(proxies):
            if not isinstance(proxy, TensorProxy):
                return None
            names.setdefault(proxy.name, proxy.named(f"{stem}{place}"))
    own = tuple(replace(one.renamed(names, at=(None, "")), subsymbols=()) for one in operations)
    inputs = tuple(names[proxy.name] for proxy in (*parameters, *captured))
    lines = [*map(described, inputs), *map(text_of, own), f"return {names[output.name].name}"]
    return ElementFunction("; ".join(lines), inputs, own, names[output.name], captured)  # type: ignore[arg-type]


def text_of(operation: BoundSymbol) -> str:
    """An operation as a text that is the same for the same operation."""
    arguments = (operation.args, dict(operation.kwargs))
    named = replace_leaves(arguments, lambda leaf: f"%{leaf.name}" if isinstance(leaf, Proxy) else leaf)
    made = " ".join(proxy.name for proxy in operation.defines)
    return f"{made} = {operation.symbol.name} {named!r}"


def described(proxy: Proxy) -> str:
    """The metadata of an input as a text."""
    assert isinstance(proxy, TensorProxy)
    return f"{proxy.name}: {proxy.dtype} {proxy.shape} {proxy.stride}"
