"""Convolutions with symbolic sizes: PyTorch's C++ code chooses their kernels by sizes.

To determine the memory format of the result, it checks whether a batch has one image or at least sixteen, or whether an
image has many elements. The format is the same for nearly all kernels. So it is determined for examples, which decides
nothing about the symbols.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any
from unittest import mock

import sympy
import torch

from thunder_core.tracing.capture.torch_facts.examples import example_of
from thunder_core.tracing.capture.torch_facts.layouts import GROUP_BY_GROUP, is_reordered_by_groups
from thunder_core.tracing.ir.sizes import generic_hint_of
from thunder_core.tracing.ir.tree import replace_leaves

BATCHES = (1, 16)  # the batch sizes at which the kernel changes (`ConvParams::use_mkldnn`)
SHORT, LONG = 4, 256  # sizes of small and large images, which use different kernels
MAX_SIZE = 1 << 24  # the largest value of a symbol in an example
CONVOLUTIONS = frozenset({torch.ops.aten.convolution, torch.ops.aten._convolution, torch.ops.aten.convolution_backward})
Layout = tuple[torch.memory_format, bool]
kernel_of: Any = torch._C._select_conv_backend
format_of: Any = torch._C._conv_determine_backend_memory_format


@contextmanager
def convolutions_for_all_sizes() -> Iterator[None]:
    """Let a convolution's metadata decide sizes only if they change the layout, during the block."""
    with (
        mock.patch.object(torch._C, "_select_conv_backend", kernel_for_all_sizes),
        mock.patch.object(torch._C, "_conv_determine_backend_memory_format", format_for_all_sizes),
    ):
        yield


def kernel_for_all_sizes(*tensors: torch.Tensor, **options: Any) -> Any:
    """Return the kernel for an example if all examples have the same layout, and the kernel for the call otherwise.

    The kernel for the call constrains the sizes. PyTorch 2.11 passes the input and the weight by keyword.
    """
    tensor, weight = tensors or (options.pop("input"), options.pop("weight"))
    layouts: dict[Layout, Any] = {}
    for example_tensor, example_weight, settings in examples_of((tensor, weight, options)):
        with suppress(RuntimeError):  # for images that are smaller than the kernel window
            kernel = kernel_of(example_tensor, example_weight, **settings)
            layouts.setdefault(layout(example_tensor, example_weight, kernel, settings), kernel)
    return layouts.popitem()[1] if len(layouts) == 1 else kernel_of(tensor, weight, **options)


def format_for_all_sizes(tensor: torch.Tensor, weight: torch.Tensor, kernel: object) -> Any:
    """Return the memory format of a kernel: that of the examples if they agree, and that of the call otherwise."""
    formats = {format_of(*example, kernel) for example in examples_of((tensor, weight))}
    return formats.pop() if len(formats) == 1 else format_of(tensor, weight, kernel)


def layout(tensor: torch.Tensor, weight: torch.Tensor, kernel: Any, settings: Mapping[str, Any]) -> Layout:
    """Return the memory format of a convolution's results, and whether joining results of groups changes the memory
    order.
    """
    memory_format = format_of(tensor, weight, kernel)
    is_usual = memory_format == torch.contiguous_format or kernel.name not in GROUP_BY_GROUP
    groups, transposed = settings["groups"], settings["transposed"]
    return memory_format, not is_usual and is_reordered_by_groups(tensor, weight, groups, transposed, memory_format)


def examples_of(arguments: Sequence[Any]) -> list[Any]:
    """Return the arguments of a convolution in several batch and image sizes, beginning with generic sizes.

    The list is empty if an example would have no elements, or if no batch or image size is symbolic.
    """
    tensor, weight = arguments[:2]
    batch, _, *lengths = map(symbols_in, tensor.shape)
    fixed = {symbol: hint for size in (tensor.shape[1], *weight.shape) for symbol, hint in symbols_in(size).items()}
    images = {symbol for length in lengths for symbol in length}
    if not {*batch, *images} - {*fixed}:
        return []
    short = max([SHORT, *map(generic_hint_of, weight.shape[2:])])
    values_of_images = [values_for(images, tensor.shape[2:], length) for length in (short, LONG)]
    pairs = itertools.product(BATCHES, values_of_images)
    chosen = [{**values, **dict.fromkeys(batch, count), **fixed} for count, values in pairs]
    examples = [example_with(values, arguments, tensor.fake_mode) for values in (fixed, *chosen)]
    return examples if all(example[0].numel() for example in examples) else []


def values_for(symbols: Collection[sympy.Symbol], sizes: Sequence[Any], length: int) -> dict[sympy.Symbol, int]:
    """Return a value for each symbol, so large that no size is below `length`, provided that sizes grow with the
    symbols.

    A size may be a fraction of its symbol: after convolutions with strides, the symbol is still the original image
    size.
    """
    value, values = length, dict.fromkeys(symbols, length)
    while value < MAX_SIZE and any(generic_hint_of(size, values=values) < length for size in sizes):
        value *= 2
        values = dict.fromkeys(symbols, value)
    return values


def symbols_in(size: object) -> dict[sympy.Symbol, int]:
    """Return the symbols of a size, and their values at tracing."""
    if not isinstance(size, torch.SymInt):
        return {}
    hints = size.node.shape_env.backed_var_to_val
    return {symbol: int(hints[symbol]) for symbol in size.node.expr.free_symbols}


def example_with(values: Mapping[sympy.Symbol, int], arguments: Sequence[Any], mode: Any) -> Any:
    """Return arguments with sizes for these values of symbols; other symbols have generic values."""
    value_of = partial(generic_hint_of, values=values)
    return replace_leaves(tuple(arguments), partial(example_of, mode=mode, value_of=value_of))
