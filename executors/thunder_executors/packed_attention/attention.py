"""Attention as the kernel computes it: its tensors in memory, and the source of the region that calls the kernel."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from thunder_core.backend.fusion.machine_code import ENTRY
from thunder_core.backend.fusion.region import RegionOccurrence
from thunder_core.tracing.analysis.attention_arguments import GROUPS, NAMES, arguments_of
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.sizes import hint_of
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_executors.packed_attention.source import NAME
from thunder_executors.packed_linear.region_names import RegionNames

TEXT = """\
\"\"\"Attention: {title}.\"\"\"

import torch

empty_strided_cpu = torch._C._dynamo.guards._empty_strided_cpu


def {entry}(args):
    [{names}] = args
    args.clear()
    result = empty_strided_cpu({shape}, {stride}, torch.float32)
    sizes = {sizes}
    strides = {strides}
    {function}({tensors}, result, *sizes, *strides, {mask_kind}, {causal}, {scale})
    return result
"""
MASK_KINDS = {None: 0, torch.bool: 1, torch.float32: 2}


@dataclass(frozen=True)
class Attention:
    """Attention of queries [batch, heads, rows, width], or [heads, rows, width], to keys and values."""

    query: TensorProxy
    key: TensorProxy
    value: TensorProxy
    mask: TensorProxy | None
    result: TensorProxy
    is_causal: bool
    scale: float

    @property
    def sizes(self) -> tuple[Any, ...]:
        """The sizes in the order of the kernel: batch, heads, heads of keys, rows, keys, and both widths."""
        batch, heads, rows, width = with_batch(self.query.shape, 1)
        _, groups, keys, value_width = with_batch(self.value.shape, 1)
        return batch, heads, groups, rows, keys, width, value_width

    @property
    def strides(self) -> tuple[Any, ...]:
        """The strides in the order of the kernel: those of batches, heads and rows of each tensor, and of the mask."""
        tensors = (self.query, self.key, self.value, self.result)
        strides = [stride for tensor in tensors for stride in with_batch(tensor.stride, 0)[:3]]
        return (*strides, *self.mask_strides)

    @property
    def mask_strides(self) -> tuple[Any, ...]:
        """The strides of the mask for batches, heads, rows and keys; zero where the mask is broadcast."""
        if self.mask is None:
            return (0, 0, 0, 0)
        strides = [
            0 if expression(size) == 1 else stride
            for size, stride in zip(self.mask.shape, self.mask.stride, strict=True)
        ]
        return (*[0] * (4 - len(strides)), *strides)

    @property
    def is_grouped(self) -> bool:
        """Whether each key and value serves several heads of queries."""
        return bool(expression(self.sizes[1]) != expression(self.sizes[2]))

    @property
    def hints(self) -> tuple[int, ...]:
        """The sizes that were seen while tracing."""
        return tuple(map(hint_of, self.sizes))

    @property
    def title(self) -> str:
        """Attention as text: `8 x 12 x 64 x 32 to 64 keys, causal`; symbolic sizes are those seen while tracing."""
        batch, heads, groups, rows, keys, width, value_width = self.hints
        words = [f"{batch} x {heads} x {rows} x {width} to {keys} keys"]
        words += [f"{groups} heads of keys"] * (groups != heads)
        words += [f"values of {value_width}"] * (value_width != width)
        words += ["causal"] * self.is_causal
        mask = {0: "", 1: "boolean mask", 2: "mask"}[self.mask_kind]
        return ", ".join((*words, *[mask] * bool(mask)))

    @property
    def mask_kind(self) -> int:
        """The kind of the mask by its number in the kernel."""
        return MASK_KINDS[None if self.mask is None else self.mask.dtype]

    @property
    def tensors(self) -> tuple[TensorProxy, ...]:
        """The tensors that the kernel reads."""
        return (self.query, self.key, self.value, *([] if self.mask is None else [self.mask]))


def attention_of(bsym: BoundSymbol) -> Attention | None:
    """Return the attention that a bound symbol computes; None if the kernel does not support it or its tensors."""
    arguments: dict[str, Any] = dict.fromkeys(NAMES)
    arguments |= {"dropout_p": 0.0, "is_causal": False, **arguments_of(bsym)}
    query, key, value, mask, dropout, is_causal = (arguments[name] for name in NAMES)
    scale, result = arguments.get("scale"), bsym.output
    tensors = (query, key, value, result, *([] if mask is None else [mask]))
    if not all(isinstance(tensor, TensorProxy) for tensor in tensors) or not is_supported(*tensors):
        return None
    has_numbers = type(dropout) in (int, float) and type(is_causal) is bool and type(scale) in (int, float, type(None))
    if not has_numbers or dropout or (is_causal and mask is not None):
        return None
    factor = 1 / math.sqrt(max(query.shape[-1], 1)) if scale is None else float(scale)
    attention = Attention(query, key, value, mask, result, is_causal, factor)
    return attention if sizes_fit(attention, arguments.get(GROUPS) is True) else None


def is_supported(
    query: TensorProxy, key: TensorProxy, value: TensorProxy, result: TensorProxy, mask: TensorProxy | None = None
) -> bool:
    """Whether the tensors have dtypes, dimensions and memory layouts that the kernel reads and writes."""
    numbers = (query, key, value, result)
    tensors = (*numbers, *([] if mask is None else [mask]))
    if any(proxy.device.type != "cpu" or proxy.overrides for proxy in tensors):
        return False
    return (
        all(proxy.dtype is torch.float32 for proxy in numbers)
        and (mask is None or (mask.dtype in MASK_KINDS and 2 <= len(mask.shape) <= len(query.shape)))
        and {len(proxy.shape) for proxy in numbers} in ({3}, {4})
        and all(type(proxy.shape[-1]) is int for proxy in numbers)
        and all(expression(proxy.stride[-1]) == 1 or proxy.shape[-1] <= 1 for proxy in numbers)
    )


def sizes_fit(attention: Attention, grouped: bool) -> bool:
    """Whether the sizes fit each other: only the mask may be broadcast, and only `grouped` heads share keys."""
    batch, heads, groups, rows, keys, width, value_width = map(expression, attention.sizes)
    of_key, of_value, of_result = (
        [expression(size) for size in with_batch(proxy.shape, 1)]
        for proxy in (attention.key, attention.value, attention.result)
    )
    if groups != heads and not (grouped and groups.is_Integer and heads.is_Integer and groups > 0):
        return False
    fits = (
        of_key == [batch, groups, keys, width]
        and of_value == [batch, groups, keys, value_width]
        and of_result == [batch, heads, rows, value_width]
    )
    divides = groups == heads or heads % groups == 0
    return fits and divides and (attention.mask is None or is_broadcast(attention.mask, [batch, heads, rows, keys]))


def is_broadcast(mask: TensorProxy, sizes: Sequence[Any]) -> bool:
    """Whether each dimension of a mask has the length of the scores' dimension, or the constant length one."""
    of_mask = [expression(size) for size in mask.shape]
    return all(own in (1, size) for own, size in zip(of_mask, sizes[-len(of_mask) :], strict=True))


def with_batch(numbers: Sequence[Any], missing: int) -> tuple[Any, ...]:
    """Return the sizes or strides of four dimensions; `missing` stands for those of missing leading dimensions."""
    return (*[missing] * (4 - len(numbers)), *numbers)


def expression(size: Any) -> Any:
    """Return a size as an expression, on which comparisons add no guards."""
    return sympy.expand(size.node.expr) if isinstance(size, torch.SymInt) else sympy.Integer(size)


def region_text(attention: Attention, occurrence: RegionOccurrence) -> str:
    """Return the source of a module that defines the region: it allocates the result, and calls the kernel."""
    names = RegionNames.of(occurrence, {f"x{index}": proxy for index, proxy in enumerate(occurrence.inputs)})
    tensors = [names.tensor(proxy) for proxy in attention.tensors]
    return TEXT.format(
        title=attention.title,
        entry=ENTRY,
        names=names.arguments,
        shape=names.sizes(map(expression, attention.result.shape)),
        stride=names.sizes(map(expression, attention.result.stride)),
        sizes=names.sizes(map(expression, attention.sizes)),
        strides=names.sizes(map(expression, attention.strides)),
        function=NAME,
        tensors=", ".join((*tensors, *[tensors[0]] * (4 - len(tensors)))),
        mask_kind=attention.mask_kind,
        causal=int(attention.is_causal),
        scale=scale_bits(attention.scale),
    )


def scale_bits(scale: float) -> int:
    """Return the bits of a number in double precision as an integer, which the kernel takes."""
    (bits,) = struct.unpack("<q", struct.pack("<d", scale))
    return int(bits)
