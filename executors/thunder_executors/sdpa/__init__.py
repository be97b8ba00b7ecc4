"""Scaled dot product attention on CUDA: the fastest backend of PyTorch that supports the inputs.

In grouped-query attention with a mask, models repeat keys and values for each group of queries, because only cuDNN's
kernels support both groups and a mask. The executor replaces attention to repeated keys and values by grouped-query
attention, and removes the copies from the trace. If the backend at run time does not support groups, keys and values
are repeated then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.backends.cuda import (
    SDPAParams,
    can_use_cudnn_attention,
    can_use_efficient_attention,
    can_use_flash_attention,
)
from torch.nn.attention import SDPBackend
from torch.nn.functional import scaled_dot_product_attention

from thunder_core.backend.claiming.executor import Executor
from thunder_core.tracing.analysis.attention_arguments import ATTENTION, GROUPS, NAMES, arguments_by_name, arguments_of
from thunder_core.tracing.analysis.grad_mode import tracked_by_autograd
from thunder_core.tracing.extension.requirement import Cuda
from thunder_core.tracing.ir.proxy import TensorProxy, environment_of
from thunder_core.tracing.ir.symbol import BoundSymbol, Symbol
from thunder_core.tracing.ir.trace import Trace
from thunder_executors.sdpa.mask_terms import TERM, bias_of, share_mask_terms

ATEN = "torch.ops.aten."
HEADS = 1  # the dimension of the heads
# The calls that repeat keys and values, in reverse order, and the aten operations of each, which keep the order of
# elements.
REPEATS = (
    ("torch.Tensor.reshape", frozenset({"view", "clone", "_unsafe_view", "reshape", "_reshape_alias"})),
    ("torch.Tensor.expand", frozenset({"expand"})),
    ("torch.Tensor.__getitem__", frozenset({"slice", "unsqueeze", "alias"})),
)

# On Hopper, cuDNN's kernels come first; PyTorch by default prefers FlashAttention 2, written for Ampere.
PRIORITY = (
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
)
CUDNN = torch.ops.aten._scaled_dot_product_cudnn_attention
# The operations of the fused backends.
KERNELS = {
    f"torch.ops.aten._scaled_dot_product_{name}_attention": backend
    for name, backend in (
        ("cudnn", SDPBackend.CUDNN_ATTENTION),
        ("flash", SDPBackend.FLASH_ATTENTION),
        ("efficient", SDPBackend.EFFICIENT_ATTENTION),
    )
}
# Whether a backend supports the inputs, by PyTorch's own rules; math supports all inputs.
RULES: dict[SDPBackend, Callable[[SDPAParams], bool]] = {
    SDPBackend.CUDNN_ATTENTION: can_use_cudnn_attention,
    SDPBackend.FLASH_ATTENTION: can_use_flash_attention,
    SDPBackend.EFFICIENT_ATTENTION: can_use_efficient_attention,
    SDPBackend.MATH: lambda params: True,
}


def attention(*args: Any, **kwargs: Any) -> torch.Tensor:
    """Compute PyTorch's scaled_dot_product_attention, by cuDNN if cuDNN supports the inputs."""
    return _attention(arguments_by_name(args, kwargs))


def cudnn_attention(*args: Any, **kwargs: Any) -> torch.Tensor:
    """Compute attention by cuDNN; if the user has disabled cuDNN's attention, PyTorch chooses the backend."""
    return _attention(arguments_by_name(args, kwargs))


def grouped_attention(*args: Any, **kwargs: Any) -> torch.Tensor:
    """Compute grouped-query attention, in which each key and value serves a group of queries.

    If no fused backend supports the groups, keys and values are repeated.
    """
    arguments = arguments_by_name(args, kwargs)
    if not is_fused(arguments):
        repeats = arguments["query"].shape[HEADS] // arguments["key"].shape[HEADS]
        for name in ("key", "value"):
            arguments[name] = arguments[name].repeat_interleave(repeats, HEADS)
        arguments[GROUPS] = False
    return _attention(arguments)


def is_fused(arguments: Mapping[str, Any]) -> bool:
    """Whether a fused backend supports the arguments of attention, by PyTorch's own rules."""
    params = params_of(arguments)
    return any(RULES[backend](params) for backend in PRIORITY if backend is not SDPBackend.MATH)


def params_of(arguments: Mapping[str, Any]) -> SDPAParams:
    """Return the parameters of attention for PyTorch's rules: query, key, value and mask, and the other arguments."""
    tensors: list[Any] = [arguments.get(name) for name in NAMES[:4]]
    rest = (arguments.get("dropout_p", 0.0), arguments.get("is_causal", False), arguments.get(GROUPS, False))
    params: SDPAParams = SDPAParams(*tensors, *rest)  # type: ignore[call-arg]
    return params


def _attention(arguments: dict[str, Any]) -> torch.Tensor:
    """Compute attention by cuDNN if cuDNN supports the inputs; otherwise PyTorch chooses.

    PyTorch prefers the other backends in the order of `PRIORITY`, so only cuDNN is called directly. The preferences of
    PyTorch are settings of the process, which eager calls of other threads read, so no setting is changed.
    """
    term = arguments.pop(TERM, None)
    if not RULES[SDPBackend.CUDNN_ATTENTION](params_of(arguments)):
        return scaled_dot_product_attention(**arguments)
    query, key, value = tensors = [arguments[name] for name in NAMES[:3]]
    is_recorded = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    output: torch.Tensor = CUDNN(
        query,
        key,
        value,
        bias_of(arguments.get("attn_mask"), query.dtype) if term is None else term,
        is_recorded,
        arguments.get("dropout_p", 0.0),
        arguments.get("is_causal", False),
        False,
        scale=arguments.get("scale"),
    )[0]
    return output


# The functions that a program calls, by the backend; None if the machine that runs the program chooses the backend.
FUNCTIONS: dict[SDPBackend | None, Callable[..., torch.Tensor]] = {
    None: attention,
    SDPBackend.CUDNN_ATTENTION: cudnn_attention,
}


def backend_for(bsym: BoundSymbol) -> SDPBackend | None:
    """Return the backend for a bound symbol's inputs on this machine's GPU; None if there is no GPU.

    Returns None for symbolic sizes too, because the choice depends on the sizes.
    """
    if Cuda().missing() or environment_of(bsym.inputs) is not None:
        return None
    arguments = arguments_of(bsym)
    with FakeTensorMode():
        params = params_of({**arguments, **{name: _like(arguments.get(name)) for name in NAMES[:4]}})
    return next(backend for backend in PRIORITY if RULES[backend](params))


def choice_of_pytorch(bsym: BoundSymbol) -> SDPBackend | None:
    """Return the fused backend that PyTorch chose while tracing; None for math, and on another device."""
    names = (operation.symbol.packet_name for operation in bsym.at_level("aten"))
    return next((KERNELS[name] for name in names if name in KERNELS), None)


def _like(proxy: TensorProxy | None) -> torch.Tensor | None:
    """Return a tensor with the metadata of a proxy and no data; None for None."""
    if proxy is None:
        return None
    fake = torch.empty_strided(proxy.shape, proxy.stride, dtype=proxy.dtype, device=proxy.device)
    return fake.requires_grad_(proxy.requires_grad)


def use_grouped_attention(trace: Trace, executor: str) -> Trace:
    """Return the trace with grouped-query attention in place of attention to repeated keys and values on CUDA.

    The bound symbols that repeat keys and values are removed, unless other operations read their results. Attention
    that autograd records is unchanged.
    """
    if not any(bsym.symbol.name == ATTENTION for bsym in trace.bound_symbols):
        return trace
    recorded = tracked_by_autograd(trace)
    producers = {proxy.name: index for index, bsym in enumerate(trace.bound_symbols) for proxy in bsym.defines}
    grouped: dict[int, BoundSymbol] = {}
    repeating = set[int]()
    for index, bsym in enumerate(trace.bound_symbols):
        if is_on_cuda(bsym) and not bsym.executor and not any(proxy.name in recorded for proxy in bsym.outputs):
            indices = repeats_of(trace.bound_symbols, producers, bsym)
            between = trace.bound_symbols[min(indices) : index] if indices else ()
            if indices and not any(inner.mutates for inner in between):
                grouped[index] = grouped_call(bsym, [trace.bound_symbols[inner] for inner in indices], executor)
                repeating.update(indices)
    return without_unread(trace, grouped, repeating, executor) if grouped else trace


def is_on_cuda(bsym: BoundSymbol) -> bool:
    """Whether a bound symbol is attention on CUDA, and torch.autocast does not cast its query."""
    on_cuda = all(proxy.device.type == "cuda" for proxy in bsym.inputs if isinstance(proxy, TensorProxy))
    return bsym.symbol.name == ATTENTION and on_cuda and arguments_of(bsym)["query"].dtype is bsym.output.dtype


def repeats_of(bsyms: Sequence[BoundSymbol], producers: Mapping[str, int], bsym: BoundSymbol) -> list[int]:
    """Return the indices of the bound symbols that repeat the keys, and then the values, of attention.

    Empty if keys and values are not both repeated for the heads of the query.
    """
    arguments = arguments_of(bsym)
    tensors = [value for name in NAMES[:3] if isinstance(value := arguments.get(name), TensorProxy)]
    chains = [repeats_of_tensor(bsyms, producers, tensor) for tensor in tensors[1:]]
    if len(chains) != 2 or not all(chains) or arguments.get(GROUPS, False):
        return []
    shapes = [_expressions(bsyms[chain[0]].inputs[0].shape)[: HEADS + 1] for chain in chains]  # type: ignore[attr-defined]
    flat = [_expressions(tensor.shape)[: HEADS + 1] for tensor in tensors]
    are_equal = shapes[0] == shapes[1] and flat[0] == flat[1] == flat[2]
    return [index for chain in chains for index in chain] if are_equal else []


def repeats_of_tensor(bsyms: Sequence[BoundSymbol], producers: Mapping[str, int], repeated: Any) -> list[int]:
    """Return the indices of the bound symbols that repeat each head of a tensor; empty if none do."""
    indices: list[int] = []
    shapes: list[list[Any]] = []
    proxy = repeated
    for name, operations in REPEATS:
        index = producers.get(proxy.name, -1) if isinstance(proxy, TensorProxy) else -1
        if index < 0 or bsyms[index].symbol.name != name or bsyms[index].executor:
            return []
        used = {operation.symbol.name.removeprefix(ATEN).partition(".")[0] for operation in bsyms[index].operations}
        if not used <= operations or not isinstance(bsyms[index].inputs[0], TensorProxy):
            return []
        shapes.insert(0, _expressions(proxy.shape))
        indices.insert(0, index)
        proxy = bsyms[index].inputs[0]
    return indices if is_repeated(_expressions(proxy.shape), *shapes) else []


def is_repeated(whole: list[Any], single: list[Any], expanded: list[Any], flat: list[Any]) -> bool:
    """Whether the shapes are those of heads repeated for groups of queries.

    The shapes are (batch, heads, ...), (batch, heads, 1, ...), (batch, heads, n, ...) and (batch, n * heads, ...).
    """
    if len(whole) != 4 or len(single) != len(expanded) or len(expanded) != 5:
        return False
    batch, heads, *rest = whole
    repeats = expanded[2]
    return (
        single == [batch, heads, 1, *rest]
        and expanded == [batch, heads, repeats, *rest]
        and flat == [batch, sympy.expand(heads * repeats), *rest]
    )


def _expressions(sizes: Sequence[Any]) -> list[Any]:
    """Return sizes as expressions, on which comparisons add no guards."""
    return [sympy.expand(size.node.expr) if isinstance(size, torch.SymInt) else sympy.Integer(size) for size in sizes]


def grouped_call(bsym: BoundSymbol, repeating: Sequence[BoundSymbol], executor: str) -> BoundSymbol:
    """Return a bound symbol for grouped-query attention.

    `repeating` has the bound symbols that repeat the key, and then the bound symbols that repeat the value.
    """
    arguments = arguments_of(bsym)
    first, second = repeating[0].inputs[0], repeating[len(REPEATS)].inputs[0]
    rest = {name: value for name, value in arguments.items() if name not in NAMES[:3]}
    return replace(
        bsym,
        symbol=Symbol.of_function(grouped_attention),
        args=(arguments["query"], first, second),
        kwargs={**rest, GROUPS: True},
        subsymbols=(*repeating, bsym),
        executor=executor,
    )


def without_unread(trace: Trace, grouped: Mapping[int, BoundSymbol], repeating: set[int], executor: str) -> Trace:
    """Return the trace with grouped-query attention, without the bound symbols in `repeating` that nothing reads."""
    read = {proxy.name for proxy in trace.outputs}
    bsyms: list[BoundSymbol] = []
    for index in reversed(range(len(trace.bound_symbols))):
        bsym = grouped.get(index, trace.bound_symbols[index])
        if index not in repeating or any(proxy.name in read for proxy in bsym.defines):
            bsyms.append(bsym)
            read |= {proxy.name for proxy in bsym.inputs}
    return trace.having(reversed(bsyms), made_by=f"attention by groups of {executor}")


@dataclass(frozen=True)
class ScaledDotProductAttention(Executor):
    """Claims attention on CUDA tensors."""

    symbolic_sizes: ClassVar[bool] = True
    before: ClassVar[tuple[str, ...]] = ("nvfuser", "inductor")
    name: str = "sdpa"

    @property
    def claims(self) -> str:
        """The claimed operation: attention on CUDA."""
        return f"{ATTENTION} on CUDA: cuDNN, flash, memory-efficient or math, the first that supports the inputs"

    def missing(self) -> str | None:
        """Return the reason why there is no GPU; None if there is one."""
        return Cuda().missing()

    def missing_for(self, target: str) -> str | None:  # noqa: ARG002
        """Return None: the kernels are those of the PyTorch that runs the program."""
        return None

    def claim_all(self, trace: Trace) -> Trace:
        """Return the trace with attention claimed, without copies of keys and values; each mask has one term."""
        return share_mask_terms(super().claim_all(use_grouped_attention(trace, self.name)), self.name)

    def claim(self, bsym: BoundSymbol) -> BoundSymbol | None:
        """Return the bound symbol as a call of its backend; without a GPU here, the backend is chosen at run time.

        Returns None if PyTorch itself chooses the same backend, so that the call may be part of a region.
        """
        if not is_on_cuda(bsym):
            return None
        backend = backend_for(bsym)
        if backend not in FUNCTIONS or (backend is not None and backend is choice_of_pytorch(bsym)):
            return None
        return replace(bsym, symbol=Symbol.of_function(FUNCTIONS[backend]), executor=self.name)


EXECUTOR = ScaledDotProductAttention()
