"""Make the results of reductions from reduced tensors: cast them, and copy offloaded gradients to the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from thunder_core.backend.parallel.buckets import result_of
from thunder_core.backend.parallel.emitter import Emitter
from thunder_core.backend.parallel.offload import CPU, copy_to
from thunder_core.backend.parallel.operators import OPERATORS
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol


@dataclass(frozen=True)
class Reduced:
    """The bound symbols of a reduction: the start, the wait that computes the results, and the wait for their copies.

    `copied` is empty unless results are copied to the memory of the CPU.
    """

    start: list[BoundSymbol]
    results: list[BoundSymbol]
    copied: list[BoundSymbol]


@dataclass(frozen=True)
class Delivery:
    """The creation of the results of reductions.

    Results among `offloaded` are copied to the memory of the CPU. With `pin_memory`, the program waits for these copies
    later. Results among `averaged` are reduced again, so they stay in their dtype and on their device, in `wide`.
    """

    emitter: Emitter
    offloaded: frozenset[str]
    averaged: frozenset[str]
    pin_memory: bool
    wide: dict[str, TensorProxy] = field(default_factory=dict)

    def deliver(
        self,
        start: list[BoundSymbol],
        bsyms: Sequence[BoundSymbol],
        ends: Sequence[BoundSymbol],
        tensors: Sequence[TensorProxy],
    ) -> Reduced:
        """Return a reduction whose tensors become the results of other bound symbols."""
        names: dict[str, TensorProxy] = {}
        casts: list[BoundSymbol] = []
        copied: list[tuple[BoundSymbol, TensorProxy]] = []
        for bsym, tensor in zip(bsyms, tensors, strict=True):
            result, is_cast = result_of(bsym), differs(result_of(bsym), tensor.dtype)
            if result.name in self.averaged and (is_cast or result.name in self.offloaded):
                self.wide[result.name] = tensor
            elif result.name in self.offloaded:
                casts += [self._cast(tensor, bsym, None)] if is_cast else []
                copied.append((bsym, casts[-1].output if is_cast else tensor))
            elif is_cast:
                casts.append(self._cast(tensor, bsym, bsym.output))
            else:
                names[tensor.name] = result
        copies, finishing = self._copies(copied)
        return Reduced(start, [*(end.rename(names) for end in ends), *casts, *copies], finishing)

    def _cast(self, tensor: TensorProxy, bsym: BoundSymbol, output: object) -> BoundSymbol:
        """Return the bound symbol that casts a tensor to the dtype of the result of another bound symbol."""
        cast = torch.ops.aten._to_copy.default
        return self.emitter.call(cast, tensor, at=bsym, output=output, dtype=result_of(bsym).dtype)

    def _copies(self, pairs: Sequence[tuple[BoundSymbol, TensorProxy]]) -> tuple[list[BoundSymbol], list[BoundSymbol]]:
        """Return two lists of bound symbols: the copies of tensors to the CPU, and the wait for these copies."""
        if not (self.pin_memory and pairs):
            return [
                copy_to(self.emitter, tensor, CPU, non_blocking=False, at=bsym, output=bsym.output)
                for bsym, tensor in pairs
            ], []
        copies = [copy_to(self.emitter, tensor, CPU, non_blocking=True, at=bsym) for bsym, tensor in pairs]
        results, (at, first) = [result_of(bsym) for bsym, _ in pairs], pairs[0]
        args = [copy.output for copy in copies], first.device
        finish = OPERATORS.finish_copies.default
        return copies, [self.emitter.call(finish, *args, at=at, output=results, ordered=True)]


def differs(tensor: TensorProxy, dtype: torch.dtype | None) -> bool:
    """Whether a dtype is given and differs from the dtype of a tensor."""
    return dtype is not None and tensor.dtype != dtype
