"""The lengths of generation that an artifact is for, and the kinds of prompts that there are within them."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import NamedTuple

LEAST_PADDED = 2  # tokens in the longest of several prompts, of which another is shorter


class Prompts(NamedTuple):
    """Prompts of one batch: how many, the tokens of the longest, and whether the others are padded at their left."""

    batch: int
    length: int
    padded: bool = False

    def __str__(self) -> str:
        """The size in words: `2 x 16, padded`."""
        return f"{self.batch} x {self.length}{', padded' if self.padded else ''}"


@dataclass(frozen=True)
class GenerationLengths:
    """Batches of at most `batch` prompts, each of at most `prompt_length` tokens, and at most `new_tokens` behind."""

    prompt_length: int
    new_tokens: int
    batch: int

    def __str__(self) -> str:
        """The lengths in words."""
        prompts = "single prompts" if self.batch == 1 else f"batches of 1 to {self.batch} prompts"
        length = "1 token" if self.prompt_length == 1 else f"1 to {self.prompt_length} tokens"
        return f"{prompts} of {length}, and {self.new_tokens} new tokens"

    @property
    def total(self) -> int:
        """The tokens of the longest prompt and of what follows."""
        return self.prompt_length + self.new_tokens

    @property
    def largest(self) -> Prompts:
        """The largest batch of the longest prompts."""
        return Prompts(self.batch, self.prompt_length)

    @property
    def between(self) -> int:
        """A length between the least and the greatest."""
        return max(1, isqrt(self.prompt_length))

    def tried(self) -> list[Prompts]:
        """The prompts that are validated on: the ends, between them, and padded ones, each that there is once."""
        several = [Prompts(self.batch, self.between), Prompts(self.batch, self.prompt_length, padded=True)]
        alone = [Prompts(1, length) for length in (self.prompt_length, 1, self.between)]
        found = [*alone, *several]
        return [*dict.fromkeys(filter(self.includes, found))]

    def ends(self) -> list[Prompts]:
        """The prompts at the ends of the lengths."""
        padded = [Prompts(min(2, self.batch), LEAST_PADDED, padded=True), self.largest._replace(padded=True)]
        found = [Prompts(1, 1), Prompts(1, self.prompt_length), self.largest, *padded]
        return [*dict.fromkeys(filter(self.includes, found))]

    def includes(self, prompts: Prompts) -> bool:
        """Whether there are such prompts, and they are within these lengths."""
        return is_possible(prompts) and prompts.batch <= self.batch and prompts.length <= self.prompt_length

    def all_kinds(self) -> list[Prompts]:
        """Prompts of each kind that programs may differ by: alone, two and most; of one token, two and most; padded."""
        batches = sorted({1, min(2, self.batch), self.batch})
        lengths = sorted({1, min(2, self.prompt_length), self.between, self.prompt_length})
        kinds = (Prompts(*kind) for kind in ((b, n, p) for p in (False, True) for b in batches for n in lengths))
        return [*filter(self.includes, kinds)]


def is_possible(prompts: Prompts) -> bool:
    """Whether there are such prompts: padding takes several, and one token of another beside what is padded."""
    return not prompts.padded or (prompts.batch > 1 and prompts.length >= LEAST_PADDED)
