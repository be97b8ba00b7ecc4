"""The measurement of `generate`: the time to the first token, the time of the following tokens, and the tokens."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from thunder_core.workflow.benchmark.interval import BenchmarkFacts
from thunder_core.workflow.benchmark.report import BenchmarkCandidate, BenchmarkReport

GENERATION = "generation"  # the name of the call that is timed


class GeneratedTokens(BenchmarkFacts):
    """The tokens that one contender generated: their times, and their agreement with the first contender's tokens."""

    name: str
    seconds: tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...] = Field(min_length=1)
    """The median over the rounds of the time since the previous token; for the first token, since the call."""
    equal: float = 1.0
    """The share of tokens, 0 to 1, that equal the first contender's token at the same position of the same prompt."""
    differs_at: int | None = None
    """The position, counted from 1, of the first token that differs in any prompt; None if all tokens are equal."""


class GenerationBenchmark(BenchmarkReport):
    """Contenders whose `generate` was measured in turn: complete calls, and the first and the next tokens as parts.

    All prompts of a call have the same length, and each gets `new_tokens` new tokens. The times of a candidate are for
    the complete call. `next_token` has one time for each round: the mean over all tokens after the first.
    """

    prompt_length: int
    new_tokens: int
    first_token: BenchmarkReport
    next_token: BenchmarkReport | None
    """None if only one token was generated."""
    texts: tuple[GeneratedTokens, ...]

    @property
    def parts(self) -> tuple[BenchmarkReport, ...]:
        """The measured parts of the call."""
        return (self.first_token,) if self.next_token is None else (self.first_token, self.next_token)

    def tokens_per_second(self, candidate: BenchmarkCandidate) -> float | None:
        """Return the tokens per second after the first token, over all prompts.

        None if only one token was generated.
        """
        return None if self.next_token is None else self.next_token.throughput[candidate.name]

    def text_of(self, candidate: BenchmarkCandidate) -> GeneratedTokens:
        """Return the tokens of a candidate."""
        return next(text for text in self.texts if text.name == candidate.name)

    def difference(self, candidate: BenchmarkCandidate) -> str:
        """Return the difference of a candidate's tokens from the first candidate's in words; empty if equal."""
        text = self.text_of(candidate)
        if text.differs_at is None:
            return ""
        share = f"{100 * (1 - text.equal):.3g}%"
        return f"{share} of its tokens differ from {self.first.name}'s, starting at token {text.differs_at}"
