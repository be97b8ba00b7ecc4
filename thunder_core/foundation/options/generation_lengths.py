"""The limits of the generations that an artifact supports, and batches of prompts that test these limits."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import NamedTuple

# The longest prompt of a padded batch has at least two tokens, because the shorter prompts have at least one.
MIN_PADDED_LENGTH = 2


class Prompts(NamedTuple):
    """The size of a batch of prompts: `batch` prompts, of which the longest has `length` tokens.

    If `padded` is set, at least one prompt is shorter, and has padding on the left.
    """

    batch: int
    length: int
    padded: bool = False

    def __str__(self) -> str:
        """Return the size as text: `2 x 16, padded`."""
        return f"{self.batch} x {self.length}{', padded' if self.padded else ''}"


@dataclass(frozen=True)
class GenerationLengths:
    """The limits of a generation: the number of prompts (`batch`), of tokens in a prompt, and of new tokens."""

    prompt_length: int
    new_tokens: int
    batch: int

    def __str__(self) -> str:
        """Return the limits as text: `batches of 1 to 4 prompts of 1 to 16 tokens, and 8 new tokens`."""
        prompts = "single prompts" if self.batch == 1 else f"batches of 1 to {self.batch} prompts"
        length = "1 token" if self.prompt_length == 1 else f"1 to {self.prompt_length} tokens"
        return f"{prompts} of {length}, and {self.new_tokens} new tokens"

    @property
    def total(self) -> int:
        """The largest number of tokens of a sequence: the longest prompt with the generated tokens."""
        return self.prompt_length + self.new_tokens

    @property
    def largest(self) -> Prompts:
        """The largest batch of the longest prompts."""
        return Prompts(self.batch, self.prompt_length)

    @property
    def medium_length(self) -> int:
        """A prompt length between the shortest and the longest: the square root of the longest."""
        return max(1, isqrt(self.prompt_length))

    def validation_prompts(self) -> list[Prompts]:
        """Return the batches for validation, without duplicates.

        They are single prompts of the largest, the smallest and a medium length, and batches of the largest size: of
        medium prompts without padding, and of the longest prompts with padding.
        """
        batches = [Prompts(self.batch, self.medium_length), Prompts(self.batch, self.prompt_length, padded=True)]
        single_prompts = [Prompts(1, length) for length in (self.prompt_length, 1, self.medium_length)]
        prompts = [*single_prompts, *batches]
        return [*dict.fromkeys(filter(self.includes, prompts))]

    def boundary_prompts(self) -> list[Prompts]:
        """Return the batches at the limits, without duplicates.

        They are the shortest and the longest single prompt, the largest batch of the longest prompts, and two batches
        with padding: the smallest and the largest.
        """
        padded = [Prompts(min(2, self.batch), MIN_PADDED_LENGTH, padded=True), self.largest._replace(padded=True)]
        prompts = [Prompts(1, 1), Prompts(1, self.prompt_length), self.largest, *padded]
        return [*dict.fromkeys(filter(self.includes, prompts))]

    def includes(self, prompts: Prompts) -> bool:
        """Whether a batch of prompts is possible and within these limits."""
        return is_possible(prompts) and prompts.batch <= self.batch and prompts.length <= self.prompt_length

    def all_kinds(self) -> list[Prompts]:
        """Return batches of prompts, one of each kind that may need its own program.

        The batches have 1, 2 or the largest number of prompts. Their longest prompts have 1, 2, a medium number or the
        largest number of tokens. Each of these batches occurs without padding and, if possible, with padding.
        """
        batch_sizes = sorted({1, min(2, self.batch), self.batch})
        lengths = sorted({1, min(2, self.prompt_length), self.medium_length, self.prompt_length})
        kinds = (
            Prompts(batch_size, length, padded)
            for padded in (False, True)
            for batch_size in batch_sizes
            for length in lengths
        )
        return [*filter(self.includes, kinds)]


def is_possible(prompts: Prompts) -> bool:
    """Whether a batch can exist: with padding, it has several prompts, and shorter prompts have at least one token."""
    return not prompts.padded or (prompts.batch > 1 and prompts.length >= MIN_PADDED_LENGTH)
