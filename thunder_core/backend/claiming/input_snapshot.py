"""Snapshots of the inputs of a bound symbol: copies, and fingerprints of large tensors, which are not copied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import torch

from thunder_core.backend.claiming.copies import Values, copy_values, large_names, shares_memory
from thunder_core.tracing.ir.symbol import BoundSymbol

WORD = torch.int64
CHUNK = 1 << 17  # words that are summed at once, which fit into a processor's cache
MULTIPLIER = 0x2545F4914F6CDD1D  # odd, so that products of different words differ; from the generator xorshift64*
SEED = 17  # for the factors of the words


@dataclass(frozen=True)
class InputSnapshot:
    """The inputs of a bound symbol before it ran.

    `values` are copies, except for large tensors that the bound symbol must not write to, such as weights.
    `fingerprints` detect changes of these large tensors.
    """

    values: Values
    fingerprints: Mapping[str, torch.Tensor]

    @classmethod
    def of(cls, inputs: Values, bsyms: Sequence[BoundSymbol]) -> InputSnapshot:
        """Return the snapshot of the values that bound symbols read or may write to."""
        shared = large_inputs(inputs, bsyms)
        return cls(
            private_values(inputs, bsyms, always=True), {name: fingerprint(tensor) for name, tensor in shared.items()}
        )

    def is_unchanged(self, name: str, value: torch.Tensor) -> bool:
        """Whether a large tensor's bits are unchanged."""
        return torch.equal(self.fingerprints[name], fingerprint(value))


def private_values(values: Values, bsyms: Sequence[BoundSymbol], *, always: bool = False) -> Values:
    """Return values that bound symbols may write to.

    The values are copies if a bound symbol writes to any of them, or if `always` is set. Large tensors that no bound
    symbol writes to are never copied.
    """
    if not (always or any(bsym.mutates for bsym in bsyms)):
        return dict(values)
    shared = large_inputs(values, bsyms)
    own = copy_values({name: value for name, value in values.items() if name not in shared})
    return {name: shared.get(name, own.get(name)) for name in values}


def large_inputs(values: Values, bsyms: Sequence[BoundSymbol]) -> dict[str, torch.Tensor]:
    """Return the large tensors whose memory the bound symbols do not write to."""
    written = [values[name] for bsym in bsyms for name in bsym.mutates if name in values]
    return {
        name: values[name].detach()
        for name in large_names(values)
        if not any(shares_memory(values[name], target) for target in written)
    }


def fingerprint(tensor: torch.Tensor) -> torch.Tensor:
    """Return numbers that identify the bits of the memory that a tensor spans.

    A change of exactly one word always changes the numbers. A change of several words leaves them equal in one case in
    billions.
    """
    first, words, last = aligned_memory(tensor)
    factors = factors_on(tensor.device)
    sums = [(mix(chunk) * factors[: chunk.numel()]).sum() for chunk in torch.split(words, CHUNK)]
    return torch.cat([first.to(WORD), torch.stack(sums), last.to(WORD)])


@cache
def factors_on(device: torch.device) -> torch.Tensor:
    """Return the odd factors of the words of a chunk, which make the sum depend on the positions of words."""
    factors = torch.randint(1 << 62, (CHUNK,), generator=torch.Generator().manual_seed(SEED)) * 2 + 1
    return factors.to(device)


def mix(words: torch.Tensor) -> torch.Tensor:
    """Return each word mixed by a one-to-one function: high bits, such as signs, also affect lower bits."""
    words = words * MULTIPLIER
    return words ^ (words >> 32)


def aligned_memory(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the memory that a tensor spans, in three parts.

    The parts are the bytes before the first whole word of the storage, the whole words, and the remaining bytes.
    """
    length = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    start, end = (offset * tensor.itemsize for offset in (tensor.storage_offset(), tensor.storage_offset() + length))
    storage = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
    first, last = -(-start // WORD.itemsize) * WORD.itemsize, end // WORD.itemsize * WORD.itemsize
    return storage[start:first], storage[first:last].view(WORD), storage[last:end]
