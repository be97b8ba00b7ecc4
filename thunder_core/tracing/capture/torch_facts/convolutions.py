"""Convolutions with symbolic sizes, whose kernels PyTorch's C++ chooses by these sizes.

It asks whether a batch has one, or at least sixteen images, or an image many elements, in order to know the memory
format of the result. That is the same for nearly all of them, and is then asked for examples, which decides nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
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

BATCHES = (1, 16)  # at which another kernel is chosen (`ConvParams::use_mkldnn`)
SHORT, LONG = 4, 256  # the sizes of images of few and of many elements, for which another one is chosen
CONVOLUTIONS = frozenset({torch.ops.aten.convolution, torch.ops.aten._convolution, torch.ops.aten.convolution_backward})
Layout = tuple[torch.memory_format, bool]
kernel_of: Any = torch._C._select_conv_backend
format_of: Any = torch._C._conv_determine_backend_memory_format


@contextmanager
def convolutions_for_all_sizes() -> Iterator[None]:
    """While this lasts, a convolution's metadata decides nothing by its sizes, but where they change the layout."""
    with (
        mock.patch.object(torch._C, "_select_conv_backend", kernel_for_all_sizes),
        mock.patch.object(torch._C, "_conv_determine_backend_memory_format", format_for_all_sizes),
    ):
        yield


def kernel_for_all_sizes(tensor: torch.Tensor, weight: torch.Tensor, **options: Any) -> Any:
    """The kernel for one of the sizes, where results have one layout for all of them, or else for those of the call.

    The latter constrains the sizes.
    """
    layouts: dict[Layout, Any] = {}
    for one, other, settings in examples_of((tensor, weight, options)):
        with suppress(RuntimeError):  # of images that are smaller than what is laid on them
            kernel = kernel_of(one, other, **settings)
            layouts.setdefault(layout(one, other, kernel, settings), kernel)
    return layouts.popitem()[1] if len(layouts) == 1 else kernel_of(tensor, weight, **options)


def format_for_all_sizes(tensor: torch.Tensor, weight: torch.Tensor, kernel: Any) -> Any:
    """The memory format in which a kernel computes, asked for examples where all of them have the same."""
    formats = {format_of(*example, kernel) for example in examples_of((tensor, weight))}
    return formats.pop() if len(formats) == 1 else format_of(tensor, weight, kernel)


def layout(tensor: torch.Tensor, weight: torch.Tensor, kernel: Any, settings: Mapping[str, Any]) -> Layout:
    """The memory format of a convolution's results, and whether those of groups are joined in another order."""
    memory_format = format_of(tensor, weight, kernel)
    is_usual = memory_format == torch.contiguous_format or kernel.name not in GROUP_BY_GROUP
    groups, transposed = settings["groups"], settings["transposed"]
    return memory_format, not is_usual and is_reordered_by_groups(tensor, weight, groups, transposed, memory_format)


def examples_of(arguments: Sequence[Any]) -> list[Any]:
    """The arguments of a convolution in several sizes of batch and image, of which the first are usual ones.

    There are none where they would have no elements, or no size of a batch or image is symbolic.
    """
    tensor, weight = arguments[:2]
    batch, _, *lengths = map(symbols_in, tensor.shape)
    kept = {symbol: hint for size in (tensor.shape[1], *weight.shape) for symbol, hint in symbols_in(size).items()}
    images = {symbol for length in lengths for symbol in length}
    if not {*batch, *images} - {*kept}:
        return []
    short = max([SHORT, *map(generic_hint_of, weight.shape[2:])])
    pairs = itertools.product(BATCHES, (short, LONG))
    chosen = [{**dict.fromkeys(images, length), **dict.fromkeys(batch, count), **kept} for count, length in pairs]
    examples = [example_with(values, arguments, tensor.fake_mode) for values in (kept, *chosen)]
    return examples if all(example[0].numel() for example in examples) else []


def symbols_in(size: Any) -> dict[sympy.Symbol, int]:
    """The symbols of which a size is computed, and the values that they had while tracing."""
    if not isinstance(size, torch.SymInt):
        return {}
    hints = size.node.shape_env.backed_var_to_val
    return {symbol: int(hints[symbol]) for symbol in size.node.expr.free_symbols}


def example_with(values: Mapping[sympy.Symbol, int], arguments: Sequence[Any], mode: Any) -> Any:
    """Arguments in sizes that come of these values of symbols; other symbols have usual ones."""
    value_of = partial(generic_hint_of, values=values)
    return replace_leaves(tuple(arguments), partial(example_of, mode=mode, value_of=value_of))
