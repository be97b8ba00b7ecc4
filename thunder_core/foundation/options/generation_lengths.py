"""The lengths of generation that an artifact supports, and the kinds of prompts within these lengths."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import NamedTuple

MIN_PADDED_LENGTH = 2  # tokens in the longest prompt of a padded batch, because a shorter prompt has at least one token


class Prompts(NamedTuple):
    """A batch of prompts: their number, the tokens of the longest one, and whether shorter ones have left padding."""

    batch: int
    length: int
    padded: bool = False

    def __str__(self) -> str:
        """Return the size in words: `2 x 16, padded`."""
        return f"{self.batch} x {self.length}{', padded' if self.padded else ''}"


@dataclass(frozen=True)
class GenerationLengths:
    """The limits of a generation: `batch` prompts of `prompt_length` tokens, and `new_tokens` generated tokens."""

    prompt_length: int
    new_tokens: int
    batch: int

    def __str__(self) -> str:
        """Return the lengths in words."""
        prompts = "single prompts" if self.batch == 1 else f"batches of 1 to {self.batch} prompts"
        length = "1 token" if self.prompt_length == 1 else f"1 to {self.prompt_length} tokens"
        return f"{prompts} of {length}, and {self.new_tokens} new tokens"

    @property
    def total(self) -> int:
        """The number of tokens of the longest prompt and the generated tokens."""
        return self.prompt_length + self.new_tokens

    @property
    def largest(self) -> Prompts:
        """The largest batch of the longest prompts."""
        return Prompts(self.batch, self.prompt_length)

    @property
    def between(self) -> int:
        """A prompt length between the shortest and the longest."""
        return max(1, isqrt(self.prompt_length))

    def tried(self) -> list[Prompts]:
        """Return the prompts for validation, without duplicates.

        They are the longest, the shortest and a medium prompt alone, and the largest batch of medium and of padded
        prompts.
        """
        several = [Prompts(self.batch, self.between), Prompts(self.batch, self.prompt_length, padded=True)]
        alone = [Prompts(1, length) for length in (self.prompt_length, 1, self.between)]
        prompts = [*alone, *several]
        return [*dict.fromkeys(filter(self.includes, prompts))]

    def ends(self) -> list[Prompts]:
        """Return the prompts at the limits of the lengths: the shortest, the longest, the largest batch, and padded."""
        padded = [Prompts(min(2, self.batch), MIN_PADDED_LENGTH, padded=True), self.largest._replace(padded=True)]
        prompts = [Prompts(1, 1), Prompts(1, self.prompt_length), self.largest, *padded]
        return [*dict.fromkeys(filter(self.includes, prompts))]

    def includes(self, prompts: Prompts) -> bool:
        """Whether a batch of prompts is possible and within these lengths."""
        return is_possible(prompts) and prompts.batch <= self.batch and prompts.length <= self.prompt_length

    def all_kinds(self) -> list[Prompts]:
        """Prompts of each kind that may need a program of its own.

        The batches have 1, 2 and the most prompts; the prompts have 1, 2, a medium number and the most tokens; batches
        may be padded.
        """
        batches = sorted({1, min(2, self.batch), self.batch})
        lengths = sorted({1, min(2, self.prompt_length), self.between, self.prompt_length})
        kinds = (Prompts(*kind) for kind in ((b, n, p) for p in (False, True) for b in batches for n in lengths))
        return [*filter(self.includes, kinds)]


def is_possible(prompts: Prompts) -> bool:
    """Whether such a batch can exist: padding needs several prompts, and at least one token in the shorter prompts."""
    return not prompts.padded or (prompts.batch > 1 and prompts.length >= MIN_PADDED_LENGTH)
