"""Conversions to 16 bits and back, as in `x.to(torch.bfloat16).float()`, which round numbers.

Within a kernel, Inductor computes in float32, and drops the rounding to 16 bits between two operations. For operations
in 16 bits, this is more precise than PyTorch. But a program that converts float32 to 16 bits and computes with the
result in float32 asks for the rounding: `x - x.bfloat16().float()` is the rounding error. So does a program that
compares the result, or converts it to integers. Such regions are compiled with all roundings
(`emulate_precision_casts`), and so are regions that convert numbers to float16 and compute with them in float16.
Constants in 16 bits are always rounded.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch

from thunder_core.backend.fusion.region import Region
from thunder_core.tracing.analysis.aliasing import computes_nothing, written_tensors
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.tree import replace_leaves
from thunder_executors.inductor.value_checks import name_of

NARROW = (torch.bfloat16, torch.float16)
WIDE = (torch.float32, torch.float64)
CONVERSIONS = frozenset({"_to_copy", "copy"})  # of other dtypes, or in a write to another tensor (`copy_`)
# Operations that only select or move numbers.
MOVES = frozenset(
    {"clone", "cat", "stack", "where", "index", "index_select", "gather", "masked_fill", "constant_pad_nd"}
    | {"flip", "roll", "repeat", "slice_scatter", "select_scatter", "tril", "triu", "_unsafe_view"}
)
# Operations that write a number into a tensor.
FILLS = frozenset(
    {"full", "full_like", "new_full", "scalar_tensor", "fill", "masked_fill", "constant_pad_nd", "index_fill", "where"}
)


def reads_rounded_numbers(region: Region) -> bool:
    """Whether a region converts numbers to 16 bits, and computes results of other dtypes with the rounded numbers.

    For float16, it also counts if the region computes with the rounded numbers in float16.
    """
    rounded: set[str] = set()
    for operation in region.operations:
        reads_rounded = any(proxy.name in rounded for proxy in operation.inputs)
        if reads_rounded and any(proxy.dtype not in NARROW for proxy in operation.tensors):
            return True
        if reads_rounded and has_dtype(operation.tensors, (torch.float16,)) and not moves_numbers(operation):
            return True
        if is_narrowing(operation) or (reads_rounded and moves_numbers(operation)):
            rounded.update(proxy.name for proxy in (*operation.tensors, *written_tensors(operation)))
    return False


def is_narrowing(operation: BoundSymbol) -> bool:
    """Whether an operation converts 32 or 64 bits to 16 bits."""
    results = (*operation.tensors, *written_tensors(operation))
    return name_of(operation) in CONVERSIONS and has_dtype(results, NARROW) and has_dtype(operation.inputs, WIDE)


def moves_numbers(operation: BoundSymbol) -> bool:
    """Whether an operation computes no new numbers."""
    return computes_nothing(operation) or name_of(operation) in MOVES


def has_dtype(proxies: Iterable[object], dtypes: tuple[torch.dtype, ...]) -> bool:
    """Whether a tensor has one of the dtypes."""
    return any(isinstance(proxy, TensorProxy) and proxy.dtype in dtypes for proxy in proxies)


def with_rounded_constants(region: Region) -> Region:
    """Return the region with the numbers that it writes into tensors of 16 bits rounded to 16 bits."""
    return replace(region, operations=tuple(map(with_rounded_constant, region.operations)))


def with_rounded_constant(operation: BoundSymbol) -> BoundSymbol:
    """Return an operation with its float arguments rounded, if it writes them into a tensor of 16 bits."""
    result = next(iter((*operation.tensors, *written_tensors(operation))), None)
    if name_of(operation) not in FILLS or result is None or result.dtype not in NARROW:
        return operation
    dtype = result.dtype

    def round_leaf(leaf: object) -> Any:
        return torch.tensor(leaf, dtype=dtype, device="cpu").item() if type(leaf) is float else leaf

    args, kwargs = replace_leaves((operation.args, dict(operation.kwargs)), round_leaf)
    return replace(operation, args=args, kwargs=kwargs)
