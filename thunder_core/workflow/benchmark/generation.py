"""The findings about `generate`: how soon the first token comes, how fast others follow, and which tokens they are."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from thunder_core.workflow.benchmark.interval import BenchmarkFacts
from thunder_core.workflow.benchmark.report import BenchmarkCandidate, BenchmarkReport

GENERATION = "generation"  # the name of the call that is timed


class GeneratedTokens(BenchmarkFacts):
    """The tokens that one contender generated: the time of each, and whether they are the first contender's."""

    name: str
    seconds: tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...] = Field(min_length=1)
    """The median, over the rounds, of the time of each token since the one before it; of the first, since the call."""
    equal: float = 1.0
    """The share of tokens, 0 to 1, that are the first contender's at the same place of the same prompt."""
    differs_at: int | None = None
    """The number of the first token, counted from 1, that differs in a prompt of the batch; None where none does."""


class GenerationBenchmark(BenchmarkReport):
    """Contenders whose `generate` was measured in turn: whole calls, and as parts of them the first token and the next.

    A call is given prompts of one length and gives so many new tokens for each. The times of a candidate are those of
    the whole call; those of `next_token` are the mean over all tokens behind the first, one for each round.
    """

    prompt_length: int
    new_tokens: int
    first_token: BenchmarkReport
    next_token: BenchmarkReport | None
    """None where one token was asked for."""
    texts: tuple[GeneratedTokens, ...]

    @property
    def parts(self) -> tuple[BenchmarkReport, ...]:
        """The parts of the call that are told apart."""
        return (self.first_token,) if self.next_token is None else (self.first_token, self.next_token)

    def tokens_per_second(self, candidate: BenchmarkCandidate) -> float | None:
        """The tokens a second behind the first one, of all prompts of the batch together; None where none follow."""
        return None if self.next_token is None else self.next_token.throughput[candidate.name]

    def text_of(self, candidate: BenchmarkCandidate) -> GeneratedTokens:
        """The tokens of a candidate."""
        return next(text for text in self.texts if text.name == candidate.name)

    def difference(self, candidate: BenchmarkCandidate) -> str:
        """The difference of a candidate's tokens from the first candidate's, in words; empty where there is none."""
        text = self.text_of(candidate)
        if text.differs_at is None:
            return ""
        share = f"{100 * (1 - text.equal):.3g}%"
        return f"{share} of its tokens differ from {self.first.name}'s, starting at token {text.differs_at}"
