"""A convolution in a trace, with the padding before it, and the normalization, addition and activation after it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from thunder_core.tracing.analysis.named_arguments import arguments_by_name
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace
from thunder_executors.prepacked_convolution.operator import Ints

CONVOLUTION = "torch.nn.functional.conv2d"
NORMALIZATION = "torch.nn.functional.batch_norm"
ADDITIONS = ("torch.Tensor.add", "torch.add", "torch.Tensor.add_")
PADDING = "torch.nn.functional.pad"
FORMAT = "torch.Tensor.contiguous"
PARAMETERS: dict[str, dict[str, Any]] = {
    CONVOLUTION: {"input": None, "weight": None, "bias": None, "stride": 1, "padding": 0, "dilation": 1, "groups": 1},
    NORMALIZATION: {
        **dict.fromkeys(("input", "running_mean", "running_var", "weight", "bias")),
        "training": False,
        "momentum": 0.1,
        "eps": 1e-5,
    },
    **{name: {"input": None, "other": None, "alpha": 1} for name in ADDITIONS},
    PADDING: {"input": None, "pad": None, "mode": "constant", "value": None},
    FORMAT: {"input": None, "memory_format": torch.contiguous_format},
}
RELU6 = {"min_val": 0.0, "max_val": 6.0}
# For each operation, the options that it must have, and the name of the activation that it then computes.
ACTIVATIONS: dict[str, tuple[dict[str, Any], str]] = {
    **dict.fromkeys(("torch.nn.functional.relu", "torch.relu", "torch.Tensor.relu"), ({}, "relu")),
    **dict.fromkeys(("torch.nn.functional.relu_", "torch.relu_", "torch.Tensor.relu_"), ({}, "relu")),
    "torch.nn.functional.relu6": ({}, "relu6"),
    "torch.nn.functional.hardtanh": (RELU6, "relu6"),
    "torch.nn.functional.hardtanh_": (RELU6, "relu6"),
    "torch.nn.functional.silu": ({}, "silu"),
    "torch.nn.functional.gelu": ({"approximate": "none"}, "gelu"),
    "torch.nn.functional.hardswish": ({}, "hardswish"),
}
HARDTANH_DEFAULTS = {"min_val": -1.0, "max_val": 1.0}


@dataclass(frozen=True)
class Chain:
    """A convolution, with the operations before and after it that one kernel computes together with it.

    `indices` are the indices of all these bound symbols. `padding` has the rows above and below the input, and the
    columns left and right of it. `is_padded` is whether an operation before the convolution pads the input.
    `statistics` has the operands of the normalization, and `addend` is the added tensor. `without_preceding` is the
    chain without the operations before the convolution, if there are any.
    """

    indices: tuple[int, ...]
    x: TensorProxy
    weight: TensorProxy
    bias: TensorProxy | None
    stride: Ints
    padding: Ints
    dilation: Ints
    groups: int
    result: TensorProxy
    statistics: tuple[TensorProxy | None, ...] = ()
    eps: float = 0.0
    addend: TensorProxy | None = None
    activation: str = ""
    is_padded: bool = False
    without_preceding: Chain | None = None

    @property
    def is_depthwise(self) -> bool:
        """Whether each channel has a kernel of its own."""
        return self.groups == self.weight.shape[0] and self.weight.shape[1] == 1

    @property
    def is_pointwise(self) -> bool:
        """Whether each pixel of the result depends on one pixel of the input."""
        kernel = (*self.weight.shape[2:], *self.stride)
        return self.groups == 1 and kernel == (1, 1, 1, 1) and not any(self.padding)

    @property
    def is_symmetric(self) -> bool:
        """Whether the padding is the same on both sides."""
        top, bottom, left, right = self.padding
        return top == bottom and left == right

    @property
    def parameters(self) -> tuple[TensorProxy, ...]:
        """The tensors from which the packed weight and bias are computed."""
        return tuple(proxy for proxy in (self.weight, self.bias, *self.statistics) if proxy is not None)


def arguments_of(bsym: BoundSymbol) -> dict[str, Any] | None:
    """Return the arguments of a bound symbol by parameter name, with defaults; None if it has an unknown argument."""
    parameters = PARAMETERS[bsym.symbol.name]
    named = arguments_by_name(bsym, parameters)
    return None if named is None else {**parameters, **named}


def pair(value: Any) -> Ints | None:
    """Return one integer twice, or two integers; None for anything else, such as symbolic numbers."""
    values = (value, value) if isinstance(value, int) else tuple(value) if isinstance(value, list | tuple) else ()
    return values if len(values) == 2 and all(type(number) is int for number in values) else None


def convolution_at(trace: Trace, index: int) -> Chain | None:
    """Return a chain of only the convolution at an index; None if there is no supported convolution."""
    bsym = trace.bound_symbols[index]
    if bsym.executor or bsym.symbol.name != CONVOLUTION or bsym.mutates or not bsym.is_resolved:
        return None
    named = arguments_of(bsym)
    if named is None:
        return None
    x, weight, bias = named["input"], named["weight"], named["bias"]
    stride, dilation = pair(named["stride"]), pair(named["dilation"])
    if stride is None or dilation is None:
        return None
    if not all(map(is_supported, (x, weight, *([] if bias is None else [bias]), bsym.output))):
        return None
    if len(x.shape) != 4 or type(named["groups"]) is not int or any(type(size) is not int for size in weight.shape):
        return None
    padding = padding_of(named["padding"], weight, dilation)
    if padding is None:
        return None
    return Chain((index,), x, weight, bias, stride, padding, dilation, named["groups"], bsym.output)


def padding_of(value: Any, weight: TensorProxy, dilation: Ints) -> Ints | None:
    """Return the rows above and below, and the columns left and right, that a convolution adds, if they are known."""
    if value == "same":
        totals = [step * (size - 1) for step, size in zip(dilation, weight.shape[2:], strict=True)]
        return tuple(size for total in totals for size in (total // 2, total - total // 2))
    padding = pair(0 if value == "valid" else value)
    return None if padding is None else (padding[0], padding[0], padding[1], padding[1])


def is_supported(proxy: Any) -> bool:
    """Whether a value is a float32 tensor on the CPU, and not of a subclass that overrides functions of PyTorch."""
    return (
        isinstance(proxy, TensorProxy)
        and proxy.dtype is torch.float32
        and proxy.device.type == "cpu"
        and not proxy.overrides
    )


def readers_in(trace: Trace) -> dict[str, list[int]]:
    """Return the indices at which each name is read, in order; outputs count as read after the last index."""
    indices: dict[str, list[int]] = defaultdict(list)
    for index, bsym in enumerate(trace.bound_symbols):
        for name in {proxy.name for proxy in bsym.inputs}:
            indices[name].append(index)
    for proxy in trace.outputs:
        indices[proxy.name].append(len(trace.bound_symbols))
    return indices


def chains_in(trace: Trace) -> Iterator[Chain]:
    """Yield the convolutions of a trace, each with the operations that one kernel computes with it."""
    readers = readers_in(trace)
    producers = {bsym.output.name: index for index, bsym in enumerate(trace.bound_symbols) if is_supported(bsym.output)}
    chained: set[int] = set()  # indices in chains; an addition of two convolutions belongs to the first
    for index in range(len(trace.bound_symbols)):
        chain = convolution_at(trace, index)
        if chain is None:
            continue
        for extend in (with_normalization, with_addition, with_activation):
            longer = with_reader(trace, readers, chain, extend)
            if longer is not None and longer.indices[-1] not in chained:
                chain = longer
        chained.update(chain.indices)
        yield with_preceding(trace, readers, producers, chain)


def with_preceding(
    trace: Trace, readers: Mapping[str, Sequence[int]], producers: Mapping[str, int], chain: Chain
) -> Chain:
    """Return a chain extended by preceding paddings and changes of memory format whose results only the chain reads."""
    without_preceding = chain
    while True:
        index = producers.get(chain.x.name)
        if index is None or len(readers[chain.x.name]) > 1:
            return chain
        bsym = trace.bound_symbols[index]
        between = trace.bound_symbols[index : chain.indices[0]]
        if bsym.executor or any(step.mutates or step.keeps_position for step in between):
            return chain
        longer = with_padding(chain, bsym) or with_format(chain, bsym)
        if longer is None:
            return chain
        chain = replace(longer, indices=(index, *chain.indices), without_preceding=without_preceding)


def with_padding(chain: Chain, bsym: BoundSymbol) -> Chain | None:
    """Return the chain extended by a preceding padding with zeros; None if the bound symbol computes none."""
    named = arguments_of(bsym) if bsym.symbol.name == PADDING else None
    if named is None or named["mode"] != "constant" or named["value"] or not is_supported(named["input"]):
        return None
    pad = named["pad"]
    if not isinstance(pad, list | tuple) or len(pad) not in (2, 4) or any(type(n) is not int or n < 0 for n in pad):
        return None
    left, right, above, below = (*pad, 0, 0)[:4]
    around = tuple(old + new for old, new in zip(chain.padding, (above, below, left, right), strict=True))
    return replace(chain, x=named["input"], padding=around, is_padded=True)


def with_format(chain: Chain, bsym: BoundSymbol) -> Chain | None:
    """Return the chain extended by a preceding change of the memory format; None if the bound symbol makes none."""
    named = arguments_of(bsym) if bsym.symbol.name == FORMAT else None
    if named is None or not is_supported(named["input"]) or named["input"].name == chain.x.name:
        return None
    return replace(chain, x=named["input"])


def with_reader(
    trace: Trace,
    readers: Mapping[str, Sequence[int]],
    chain: Chain,
    extend: Callable[[Chain, BoundSymbol], Chain | None],
) -> Chain | None:
    """Return the chain extended by the only reader of its result; None if `extend` or the order refuses the reader."""
    later = [index for index in readers.get(chain.result.name, ()) if index > chain.indices[-1]]
    if not later or later[0] == len(trace.bound_symbols):
        return None
    index = later[0]
    bsym = trace.bound_symbols[index]
    # The chain is computed where its last operation is, so no operation in between may write or keep its position.
    between = trace.bound_symbols[chain.indices[0] + 1 : index]
    members = {trace.bound_symbols[member] for member in chain.indices}
    if bsym.executor or not bsym.is_resolved or not isinstance(bsym.output, TensorProxy):
        return None
    in_place = bsym.output.name == chain.result.name  # if so, later readers read the new result
    if len(later) > 1 and not in_place:
        return None
    if set(bsym.mutates) - {chain.result.name} or (bsym.mutates and not in_place):
        return None
    if any(step not in members and (step.mutates or step.keeps_position) for step in between):
        return None
    longer = extend(chain, bsym)
    if longer is None or not has_layout_of(bsym.output, chain.result):
        return None
    return replace(longer, indices=(*chain.indices, index), result=bsym.output)


def has_layout_of(proxy: TensorProxy, expected: TensorProxy) -> bool:
    """Whether a tensor has the sizes, strides and dtype of another."""
    return is_supported(proxy) and (proxy.shape, proxy.stride) == (expected.shape, expected.stride)


def with_normalization(chain: Chain, bsym: BoundSymbol) -> Chain | None:
    """Return the chain with the operands of a batch normalization in eval mode; None for another bound symbol."""
    named = arguments_of(bsym) if bsym.symbol.name == NORMALIZATION else None
    if named is None or named["training"] is not False or named["input"].name != chain.result.name:
        return None
    statistics = tuple(named[name] for name in ("running_mean", "running_var", "weight", "bias"))
    if not all(map(is_supported, statistics[:2])) or type(named["eps"]) is not float:
        return None
    if not all(proxy is None or is_supported(proxy) for proxy in statistics[2:]):
        return None
    return replace(chain, statistics=statistics, eps=named["eps"])


def with_addition(chain: Chain, bsym: BoundSymbol) -> Chain | None:
    """Return the chain with a tensor of the same layout to add; None if the bound symbol does not add one."""
    named = arguments_of(bsym) if bsym.symbol.name in ADDITIONS else None
    if named is None or named["alpha"] != 1:
        return None
    operands = [named["input"], named["other"]]
    if not all(isinstance(operand, TensorProxy) for operand in operands) or operands[0].name == operands[1].name:
        return None
    addends = [operand for operand in operands if operand.name != chain.result.name]
    if len(addends) != 1 or not has_layout_of(addends[0], chain.result):
        return None
    return replace(chain, addend=addends[0])


def with_activation(chain: Chain, bsym: BoundSymbol) -> Chain | None:
    """Return the chain with an activation; None if the bound symbol does not compute one."""
    if bsym.symbol.name not in ACTIVATIONS or len(bsym.inputs) != 1:
        return None
    expected, activation = ACTIVATIONS[bsym.symbol.name]
    named = arguments_by_name(bsym, ("input", *expected, "inplace"))
    defaults = HARDTANH_DEFAULTS if expected is RELU6 else expected  # the defaults of hardtanh are not those of ReLU6
    if named is None or any(named.get(name, defaults[name]) != expected[name] for name in expected):
        return None
    return replace(chain, activation=activation)
