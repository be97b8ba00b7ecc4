"""Choose the cuts of a computation: the positions at which it is divided, so that repeated layers are equal segments.

Equal segments are compiled once. Kernels do not fuse across a cut, so each repeat is cut where this costs the least.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from thunder_core.tracing.analysis.aliasing import is_view
from thunder_core.tracing.analysis.repeats import Repeat, find_repeats
from thunder_core.tracing.analysis.structure import structural_key
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol

# Operations that a compiler calls as library kernels: operations before and after such a call never share a kernel.
EXTERN_CALLS = frozenset(
    f"torch.ops.aten.{name}"
    for name in (
        "mm", "addmm", "bmm", "baddbmm", "convolution", "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_fused_attention_overrideable",
        "_scaled_dot_product_flash_attention_for_cpu_backward", "_scaled_dot_product_flash_attention_backward",
        "_scaled_dot_product_efficient_attention_backward", "_scaled_dot_product_cudnn_attention_backward",
        "convolution_backward",
    )
)  # fmt: skip


def is_extern_call(operation: BoundSymbol) -> bool:
    """Whether an aten operation is a library call: matrix products, convolutions, attention."""
    return operation.symbol.packet_name in EXTERN_CALLS


def is_separate(operation: BoundSymbol) -> bool:
    """Whether an operation never shares a kernel: a library call, or a call that an executor has claimed."""
    return bool(operation.executor) or is_extern_call(operation)


def divide(bsyms: Sequence[BoundSymbol]) -> list[range]:
    """Return the segments of bound symbols: each period of each repeat, and the bound symbols between repeats."""
    cuts = {
        cut
        for repeat in find_repeats([structural_key(bsym) for bsym in bsyms])
        for cut in _align_repeat(repeat, bsyms).cuts
    }
    return [range(start, stop) for start, stop in pairwise(sorted({0, len(bsyms)} | cuts))]


def _align_repeat(repeat: Repeat, bsyms: Sequence[BoundSymbol]) -> Repeat:
    """Shift a repeat to the start with the cheapest cut; a repeat of three or more periods may lose one period."""
    window = bsyms[repeat.start : repeat.start + repeat.period * min(repeat.count, 3)]
    costs = cut_costs(window)[repeat.period :]  # the costs of the cuts at and after the end of the first period
    shift_count = repeat.period if repeat.count > 2 else min(repeat.slack + 1, repeat.period)

    def cost_of_shift(shift: int) -> tuple[int, bool, int]:
        loses_period = shift > repeat.slack
        return costs[shift].bytes, loses_period, costs[shift].tensors

    return repeat.shift(min(range(shift_count), key=cost_of_shift))


@dataclass
class Cost:
    """The cost of a cut: the bytes that would stay within a kernel without the cut, and the number of crossing tensors.

    A tensor crosses a cut if it is defined before the cut and read after the cut.
    """

    bytes: int = 0
    tensors: int = 0


def cut_costs(bsyms: Sequence[BoundSymbol]) -> list[Cost]:
    """Return the cost of a cut before each bound symbol, and after the last one."""
    costs = [Cost() for _ in range(len(bsyms) + 1)]
    for value in _Values().of(bsyms):
        for index in range(value.defined_at + 1, value.last_read_at + 1):
            costs[index].tensors += 1
        for index in range(value.defined_at + 1, value.last_fusible_read_at + 1):
            costs[index].bytes += value.bytes
    return costs


@dataclass
class _Value:
    """A tensor: the position of the bound symbol that defines the tensor, its bytes, and its last reader's position.

    `depth` is the greatest number of separate calls (`is_separate`) on a path to the tensor, including the defining
    call.
    `last_fusible_read_at` is the position of the last reader that could share a kernel with the operation that defines
    the tensor.
    """

    defined_at: int
    depth: int
    bytes: int
    last_read_at: int = 0
    last_fusible_read_at: int = 0


@dataclass
class _Values:
    """The tensors of bound symbols by name; a view has the entry of its base."""

    value_by_name: dict[str, _Value] = field(default_factory=dict)

    def of(self, bsyms: Sequence[BoundSymbol]) -> Iterable[_Value]:
        """Return each tensor that the bound symbols define."""
        for index, bsym in enumerate(bsyms):
            for operation in (not bsym.executor and bsym.operations) or (bsym,):
                self._note_accesses(operation, index)
        return {id(value): value for value in self.value_by_name.values()}.values()

    def _note_accesses(self, operation: BoundSymbol, index: int) -> None:
        """Note the tensors that an operation in the bound symbol at a position reads and defines."""
        inputs = [self.value_by_name[proxy.name] for proxy in operation.inputs if proxy.name in self.value_by_name]
        depth = max((value.depth for value in inputs), default=0)
        for value in inputs:
            value.last_read_at = index
            if value.depth == depth and not is_separate(operation) and not is_view(operation):
                value.last_fusible_read_at = index
        for proxy in operation.defines:
            if is_view(operation) and inputs:
                self.value_by_name[proxy.name] = inputs[0]
            elif isinstance(proxy, TensorProxy):
                self.value_by_name[proxy.name] = _Value(index, depth + is_separate(operation), proxy.bytes)
