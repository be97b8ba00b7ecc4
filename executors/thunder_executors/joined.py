"""Multiply one row by several weights in a single product, over weights that are adjacent in memory.

Queries, keys and values are products of the same row with three weights, and so are the two halves of a gated layer.
For one row, as in decoding a token, the time of a product is that of reading its weight, and a small weight does not
keep a GPU busy. One product of all weights reads them at the bandwidth of memory. The weights keep their values: the
first call moves them into one block of memory, and each weight becomes a view of the block. Weights whose memory
another tensor also uses are not moved, and are multiplied one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from threading import Lock
from typing import Any, ClassVar

import torch
from torch.nn.functional import linear

from thunder_core.backend.claiming.executor import Executor
from thunder_core.backend.fusion.written_memory import is_held
from thunder_core.tracing.analysis.aliasing import names_written_to
from thunder_core.tracing.extension.requirement import Cuda
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.sizes import hint_of
from thunder_core.tracing.ir.symbol import BoundSymbol, Symbol
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.library.examination import is_examined

LINEAR = "torch.nn.functional.linear"
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
ALIGNMENT = 16  # bytes: a weight at another address is read in smaller pieces
SOLE_OWNER = 2  # references to an unshared storage: of the tensor, and of the `UntypedStorage` object that counts them
_LOCK = Lock()


def joined_linear(row: torch.Tensor, *weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the products of `row` [..., in] with each weight [out, in]; each result is [..., out]."""
    if row.numel() == row.shape[-1]:
        joined = joined_view(weights)
        if joined is not None:
            return torch.split(linear(row, joined), [weight.shape[0] for weight in weights], dim=-1)
    return tuple(linear(row, weight) for weight in weights)


def joined_view(weights: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Return all weights as one tensor [sum of outs, in]; None if they are not adjacent and cannot be moved."""
    if not are_adjacent(weights):
        with _LOCK:
            if not are_adjacent(weights) and not move_into_one_block(weights):
                return None
    rows, columns = sum(weight.shape[0] for weight in weights), weights[0].shape[1]
    return weights[0].detach().as_strided((rows, columns), (columns, 1))


def are_adjacent(weights: Sequence[torch.Tensor]) -> bool:
    """Whether contiguous weights of one storage are adjacent in memory."""
    return all(
        before.data_ptr() + before.nbytes == after.data_ptr()
        and before.untyped_storage().data_ptr() == after.untyped_storage().data_ptr()
        for before, after in pairwise(weights)
    )


def move_into_one_block(weights: Sequence[torch.Tensor]) -> bool:
    """Move weights into one block of memory, if nothing else holds their memory; return whether they were moved."""
    capturing = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
    is_repeated = len(set(map(id, weights))) < len(weights)
    if capturing or is_repeated or is_examined() or not all(map(is_sole_owner, weights)):
        return False
    with torch.no_grad():
        block = torch.cat([weight.detach() for weight in weights])
        for weight, section in zip(weights, torch.split(block, [weight.shape[0] for weight in weights]), strict=True):
            weight.data = section
    return True


def is_sole_owner(weight: torch.Tensor) -> bool:
    """Whether a weight fills its storage, and no other tensor uses the storage."""
    storage = weight.untyped_storage()
    return (
        weight.is_contiguous()
        and storage.nbytes() == weight.nbytes
        and torch._C._storage_Use_Count(storage._cdata) <= SOLE_OWNER
    )


@dataclass(frozen=True)
class JoinedProducts(Executor):
    """Claims linear layers without bias that read the same row, for inference."""

    symbolic_sizes: ClassVar[bool] = True
    before: ClassVar[tuple[str, ...]] = ("nvfuser", "inductor", "cudagraphs")
    name: str = "joined"
    devices: tuple[str, ...] = ("cuda",)

    @property
    def claims(self) -> str:
        """The claimed operations: products of one row."""
        return "linear layers that read the same row, such as queries, keys and values of one token, as one product"

    def missing(self) -> str | None:
        """Return the reason why there is no GPU; None if there is one, or the CPU is enabled."""
        return None if "cpu" in self.devices else Cuda().missing()

    def missing_for(self, target: str) -> str | None:  # noqa: ARG002
        """Return None: PyTorch's own matrix product runs on every GPU."""
        return None

    def claim(self, bsym: BoundSymbol) -> BoundSymbol | None:  # noqa: ARG002
        """Return None: a single product cannot be joined."""
        return None

    def claim_all(self, trace: Trace) -> Trace:
        """Return the trace with one bound symbol for all linear layers of the same row."""
        written = names_written_to(trace)
        groups: dict[str, list[BoundSymbol]] = {}
        for bsym in trace.bound_symbols:
            if self.is_joinable(bsym, trace) and not any(proxy.name in written for proxy in bsym.inputs):
                groups.setdefault(next(arguments_of(bsym)).name, []).append(bsym)
        joined = {group[0]: joined_call(group, self.name) for group in groups.values() if len(group) > 1}
        left_out = {bsym for group in groups.values() if len(group) > 1 for bsym in group[1:]}
        bsyms = [joined.get(bsym, bsym) for bsym in trace.bound_symbols if bsym not in left_out]
        return trace.having(bsyms, made_by=f"claim by {self.name}")

    def is_joinable(self, bsym: BoundSymbol, trace: Trace) -> bool:
        """Whether a bound symbol is an unclaimed linear layer of one row, without bias, with a module's weight."""
        operands = plain_linear(bsym, trace)
        if operands is None:
            return False
        row, weight = operands
        return (
            not any(proxy.requires_grad for proxy in (row, *bsym.tensors))
            and row.dtype == weight.dtype
            and row.dtype in DTYPES
            and row.device.type in self.devices
            and is_one_row(row)
            and is_plain_weight(weight)
        )


def arguments_of(bsym: BoundSymbol) -> Iterator[Any]:
    """Yield the input, weight and bias of a linear layer, passed by position or by name."""
    yield from bsym.args
    yield from (bsym.kwargs[name] for name in ("input", "weight", "bias")[len(bsym.args) :] if name in bsym.kwargs)


def plain_linear(bsym: BoundSymbol, trace: Trace) -> tuple[TensorProxy, TensorProxy] | None:
    """Return the input and the weight of an unclaimed linear layer without bias, with a module's weight; or None.

    A layer whose result torch.autocast casts to another dtype is not plain: autocast may be off where it is joined.
    """
    if bsym.executor or bsym.symbol.name != LINEAR or bsym.mutates:
        return None
    x, weight, bias = [*arguments_of(bsym), None][:3]
    if bias is not None or not isinstance(x, TensorProxy) or not isinstance(weight, TensorProxy):
        return None
    if bsym.output.dtype is not x.dtype:
        return None
    return (x, weight) if is_held(trace.origins.get(weight.name, "")) else None


def is_one_row(proxy: TensorProxy) -> bool:
    """Whether a tensor has one row, or one row for each sequence of a batch of symbolic size."""
    rows: tuple[Any, ...] = proxy.shape[:-1]
    symbols = [size for size in rows if isinstance(size, torch.SymInt)]
    is_batch = len(symbols) == 1 and rows[0] is symbols[0] and all(size == 1 for size in rows[1:])
    return prod(map(hint_of, rows)) == 1 or is_batch


def is_plain_weight(proxy: TensorProxy) -> bool:
    """Whether a weight is a contiguous matrix of constant sizes whose rows begin at aligned addresses."""
    sizes = proxy.shape
    if len(sizes) != 2 or not all(isinstance(size, int) for size in (*sizes, *proxy.stride)):
        return False
    return tuple(proxy.stride) == (sizes[1], 1) and sizes[1] * proxy.dtype.itemsize % ALIGNMENT == 0


def joined_call(group: Sequence[BoundSymbol], executor: str) -> BoundSymbol:
    """Return one bound symbol for linear layers of the same row."""
    weights = [[*arguments_of(bsym)][1] for bsym in group]
    return BoundSymbol(
        symbol=Symbol.of_function(joined_linear),
        args=(next(arguments_of(group[0])), *weights),
        kwargs={},
        output=tuple(bsym.output for bsym in group),
        subsymbols=tuple(group),
        source=group[0].source,
        module=group[0].module,
        executor=executor,
    )


EXECUTOR = JoinedProducts()
