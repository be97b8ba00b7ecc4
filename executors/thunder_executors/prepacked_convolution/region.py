"""The text of a region that computes a convolution and what belongs to it, by a method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch

from thunder_core.backend.fusion.machine_code import ENTRY
from thunder_core.backend.fusion.region import RegionOccurrence
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.sizes import text_of
from thunder_executors.prepacked_convolution.chain import Chain
from thunder_executors.prepacked_convolution.kernel import NAME
from thunder_executors.prepacked_convolution.padding_source import METHODS

ONEDNN = "oneDNN"
NUMBERS = {"": 0, "relu": 1, "silu": 2, "gelu": 3, "relu6": 5, "hardswish": 6}  # of the activations in the kernel
KERNEL_TEXT = """\
\"\"\"{title}.\"\"\"

import torch
from thunder_executors.prepacked_convolution.weights import packed_weights

empty_strided_cpu = torch._C._dynamo.guards._empty_strided_cpu


def {entry}(args):
    {names}, = args
    args.clear()
    result = empty_strided_cpu({shape}, {stride}, torch.float32)
    packed = packed_weights({parameters}, {eps}, {method!r}, {panel})
    bias = {x} if packed.bias is None else packed.bias
    sizes = {sizes}
    {function}({x}, packed.weight, bias, {other}, result, {number}, *sizes, packed.bias is not None, {has_other})
    return result
"""
LIBRARY_TEXT = """\
\"\"\"{title}.\"\"\"

from thunder_executors.prepacked_convolution.operator import convolution


def {entry}(args):
    {names}, = args
    args.clear()
    return convolution({x}, {parameters}, {other}, {settings})
"""


def region_text(chain: Chain, occurrence: RegionOccurrence, title: str, method: str, panel: int) -> str:
    """Return the text of a module that defines the region: it prepares the weight, and computes the result."""
    symbols = {proxy.value.node.expr: f"s{place}" for place, proxy in enumerate(occurrence.region.symbols)}
    names = {proxy.name: f"t{place}" for place, proxy in enumerate(occurrence.inputs)}
    parameters = [chain.weight, chain.bias, *chain.statistics]

    def texts(sizes: Sequence[Any]) -> str:
        return f"({''.join(f'{text_of(expression(size), symbols)}, ' for size in sizes)})"

    words: dict[str, Any] = {
        "title": title,
        "entry": ENTRY,
        "names": ", ".join((*names.values(), *symbols.values())),
        "x": names[chain.x.name],
        "other": "None" if chain.other is None else names[chain.other.name],
        "parameters": f"({', '.join('None' if proxy is None else names[proxy.name] for proxy in parameters)}, )",
    }
    if method == ONEDNN:
        return LIBRARY_TEXT.format(**words, settings=settings_text(chain))
    return KERNEL_TEXT.format(
        **words | {"other": names[(chain.other or chain.x).name]},
        function=NAME,
        shape=texts(chain.result.shape),
        stride=texts(chain.result.stride),
        eps=chain.eps,
        method=method,
        panel=panel,
        number=METHODS[method],
        sizes=texts(sizes_of(chain)),
        has_other=int(chain.other is not None),
    )


def settings_text(chain: Chain) -> str:
    """Return the keyword arguments of oneDNN's convolution."""
    constant = all(type(size) is int for size in (*chain.x.shape, *chain.result.stride))
    settings: dict[str, Any] = {
        "stride": chain.stride,
        "padding": (chain.padding[0], chain.padding[2]),
        "dilation": chain.dilation,
        "groups": chain.groups,
        "eps": chain.eps,
        "activation": chain.activation,
    }
    if constant:
        settings |= {"size": tuple(chain.x.shape), "result_stride": tuple(chain.result.stride)}
    return ", ".join(f"{name}={value!r}" for name, value in settings.items())


def sizes_of(chain: Chain) -> tuple[Any, ...]:
    """Return the sizes that the kernel takes, in the order of `padding_source.ARGUMENTS`, up to the activation."""
    x, result = chain.x, chain.result
    return (
        *(x.shape[0], x.shape[1], x.shape[2], x.shape[3], *x.stride),
        *(result.shape[1], result.shape[2], result.shape[3], *chain.weight.shape[2:]),
        *(*chain.stride, *chain.dilation, chain.padding[0], chain.padding[2], NUMBERS[chain.activation]),
    )


def methods_for(chain: Chain) -> tuple[str, ...]:
    """Return the methods that compute a chain, without oneDNN's."""
    if not is_channels_last(chain.result) or chain.activation not in NUMBERS:
        return ()
    if chain.is_depthwise and chain.groups > 1:
        return ("depthwise",)
    if chain.groups > 1:
        return ()
    is_small = tuple(chain.weight.shape[2:]) == (3, 3) and chain.stride == chain.dilation == (1, 1)
    return ("Winograd", "direct") if is_small else ("direct",)


def is_channels_last(proxy: TensorProxy) -> bool:
    """Whether images are dense in channels-last format."""
    sizes, strides = ([expression(size) for size in values] for values in (proxy.shape, proxy.stride))
    step = sympy.Integer(1)
    for dimension in (1, 3, 2, 0):
        if sizes[dimension] != 1 and sympy.expand(strides[dimension] - step) != 0:
            return False
        step *= sizes[dimension]
    return True


def expression(size: Any) -> Any:
    """Return a size as an expression, on which comparisons add no guards."""
    return size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)
