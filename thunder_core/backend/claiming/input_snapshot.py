"""Snapshots of the inputs of a line: copies, and fingerprints of large tensors, of which there is no copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import torch

from thunder_core.backend.claiming.copies import Values, copied, is_large, shares_memory
from thunder_core.tracing.ir.symbol import BoundSymbol

WORD = torch.int64
CHUNK = 1 << 17  # words that are added up at once, which the cache of a processor holds
MULTIPLIER = 0x2545F4914F6CDD1D  # odd, so that products of different words differ; of the generator xorshift64*
SEED = 17  # of the factors of the words


@dataclass(frozen=True)
class InputSnapshot:
    """The inputs of a line as they were before it ran.

    `values` are copies, but for large tensors that the line is not to write to, such as weights. `fingerprints` tell
    whether these are still what they were.
    """

    values: Values
    fingerprints: Mapping[str, torch.Tensor]

    @classmethod
    def of(cls, inputs: Values, bsyms: Sequence[BoundSymbol]) -> InputSnapshot:
        """The snapshot of what bound symbols read, or may write to."""
        shared = large_inputs(inputs, bsyms)
        return cls(private_values(inputs, bsyms, always=True), {name: fingerprint(one) for name, one in shared.items()})

    def is_unchanged(self, name: str, value: torch.Tensor) -> bool:
        """Whether a large tensor has the bits that it had."""
        return torch.equal(self.fingerprints[name], fingerprint(value))


def private_values(values: Values, bsyms: Sequence[BoundSymbol], *, always: bool = False) -> Values:
    """Values that bound symbols may write to: copies, where they write to anything, or `always`.

    Large tensors that no bound symbol writes to are themselves.
    """
    if not (always or any(bsym.mutates for bsym in bsyms)):
        return dict(values)
    shared = large_inputs(values, bsyms)
    own = copied({name: value for name, value in values.items() if name not in shared})
    return {name: shared.get(name, own.get(name)) for name in values}


def large_inputs(values: Values, bsyms: Sequence[BoundSymbol]) -> dict[str, torch.Tensor]:
    """The large tensors whose memory bound symbols do not write to."""
    written = [values[name] for bsym in bsyms for name in bsym.mutates if name in values]
    return {
        name: value.detach()
        for name, value in values.items()
        if is_large(value) and not any(shares_memory(value, other) for other in written)
    }


def fingerprint(tensor: torch.Tensor) -> torch.Tensor:
    """Numbers by which the bits of the memory that a tensor spans are known.

    They are others for certain where one word differs, and but for one case in billions where several do.
    """
    first, words, last = aligned_memory(tensor)
    factors = factors_on(tensor.device)
    sums = [(mixed(chunk) * factors[: chunk.numel()]).sum() for chunk in torch.split(words, CHUNK)]
    return torch.cat([first.to(WORD), torch.stack(sums), last.to(WORD)])


@cache
def factors_on(device: torch.device) -> torch.Tensor:
    """The odd factors of the words of a chunk, by which words at different places count differently."""
    factors = torch.randint(1 << 62, (CHUNK,), generator=torch.Generator().manual_seed(SEED)) * 2 + 1
    return factors.to(device)


def mixed(words: torch.Tensor) -> torch.Tensor:
    """Other numbers for other words, in which the highest bits of a word, such as signs, count for lower ones too."""
    words = words * MULTIPLIER
    return words ^ (words >> 32)


def aligned_memory(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The memory that a tensor spans: bytes up to the first whole word of the storage, whole words, remaining bytes."""
    length = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    start, end = (place * tensor.itemsize for place in (tensor.storage_offset(), tensor.storage_offset() + length))
    storage = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
    first, last = -(-start // WORD.itemsize) * WORD.itemsize, end // WORD.itemsize * WORD.itemsize
    return storage[start:first], storage[first:last].view(WORD), storage[last:end]
