"""Convert reduced gradients to the names, dtypes and devices that the trace reads."""

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
    """The bound symbols of a reduction of gradients.

    `start` starts the collective. `results` are the wait for the collective, and casts and copies of the reduced
    tensors. `copy_waits` wait for copies to the memory of the CPU; empty unless these copies are asynchronous
    (`pin_memory`).
    """

    start: list[BoundSymbol]
    results: list[BoundSymbol]
    copy_waits: list[BoundSymbol]


@dataclass(frozen=True)
class Delivery:
    """Converts reduced tensors to the results of reductions: renames, casts or copies them.

    Results among `offloaded` are copied to the memory of the CPU. With `pin_memory`, the program waits for these copies
    later. Results among `averaged` are reduced again by another collective. If such a result has another dtype or
    device than the reduced tensor, `unconverted` maps its name to the reduced tensor, which is not converted yet.
    """

    emitter: Emitter
    offloaded: frozenset[str]
    averaged: frozenset[str]
    pin_memory: bool
    unconverted: dict[str, TensorProxy] = field(default_factory=dict)

    def deliver(
        self,
        start: list[BoundSymbol],
        bsyms: Sequence[BoundSymbol],
        ends: Sequence[BoundSymbol],
        tensors: Sequence[TensorProxy],
    ) -> Reduced:
        """Return the reduction that `start` begins, with the results of the bound symbols `bsyms`.

        The bound symbols `ends` compute the reduced `tensors`, which are renamed, cast or copied to these results.
        Tensors that are reduced again are added to `unconverted`.
        """
        renamed: dict[str, TensorProxy] = {}
        casts: list[BoundSymbol] = []
        to_copy: list[tuple[BoundSymbol, TensorProxy]] = []
        for bsym, tensor in zip(bsyms, tensors, strict=True):
            result, is_cast = result_of(bsym), differs(result_of(bsym), tensor.dtype)
            if result.name in self.averaged and (is_cast or result.name in self.offloaded):
                self.unconverted[result.name] = tensor
            elif result.name in self.offloaded:
                casts += [self._cast(tensor, bsym, None)] if is_cast else []
                to_copy.append((bsym, casts[-1].output if is_cast else tensor))
            elif is_cast:
                casts.append(self._cast(tensor, bsym, bsym.output))
            else:
                renamed[tensor.name] = result
        copies, copy_waits = self._copies(to_copy)
        return Reduced(start, [*(end.rename(renamed) for end in ends), *casts, *copies], copy_waits)

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
        results = [result_of(bsym) for bsym, _ in pairs]
        at, first_tensor = pairs[0]
        args = [copy.output for copy in copies], first_tensor.device
        finish = OPERATORS.finish_copies.default
        return copies, [self.emitter.call(finish, *args, at=at, output=results, ordered=True)]


def differs(tensor: TensorProxy, dtype: torch.dtype | None) -> bool:
    """Whether a dtype is given and differs from the dtype of a tensor."""
    return dtype is not None and tensor.dtype != dtype
