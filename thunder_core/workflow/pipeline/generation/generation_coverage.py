"""Trace the programs that `generate` calls, until none of the tried batches of prompts needs a new program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from thunder_core.backend.runtime.program import Program
from thunder_core.compilation.compiler import last_program, specializations_of
from thunder_core.foundation.errors import RangeNotServed
from thunder_core.foundation.options.generation_lengths import GenerationLengths, Prompts
from thunder_core.workflow.pipeline.generation.generation_calls import STEPS, inputs_of
from thunder_core.workflow.pipeline.session.range_coverage import limits_of_programs, numbers_in_constraints
from thunder_core.workflow.pipeline.session.session import Session
from thunder_core.workflow.validation.generation import generate

MAX_PROGRAMS = 16  # a model that needs more programs specializes too much for these lengths
MAX_BATCHES = 64  # of prompts near the numbers in constraints, for each set of programs


@dataclass(frozen=True)
class GenerationCoverage:
    """The programs of a session, which must serve all batches of prompts and numbers of new tokens within `lengths`."""

    session: Session
    lengths: GenerationLengths

    @property
    def programs(self) -> list[Program]:
        """The programs in the order in which they were traced."""
        return list(specializations_of(self.session.compiled).programs)[::-1]

    def trace(self, new_tokens: int) -> Program:
        """Generate tokens after the longest prompts; return the program that ran last."""
        self._generate(self.lengths.largest, new_tokens)
        return last_program(self.session.compiled)

    def complete(self) -> str:
        """Generate tokens for each kind of batch (size, length, padding), and for lengths near numbers in constraints.

        Returns a description of the tried batches. Raises `RangeNotServed` if more than `MAX_PROGRAMS` programs are
        needed, or if a call runs in eager PyTorch.
        """
        probed: set[Prompts] = set()
        while (prompts := next((probe for probe in self._probes() if probe not in probed), None)) is not None:
            probed.add(prompts)
            self._generate(prompts, min(STEPS, self.lengths.new_tokens))
        return f"tried {len(probed)} batches of prompts: the ends, and lengths near the numbers in constraints"

    def require_all_served(self) -> None:
        """Raise `RangeNotServed` if there are too many programs, or if a call ran in eager PyTorch."""
        count, traced_calls = len(self.programs), specializations_of(self.session.compiled).misses
        if count > MAX_PROGRAMS or traced_calls > count:  # a traced call without a program ran in eager PyTorch
            raise self._not_served()

    def _generate(self, prompts: Prompts, new_tokens: int) -> None:
        generate(self.session.generator, inputs_of(self.session, prompts, self.session.seed), new_tokens)
        self.require_all_served()

    def _probes(self) -> Iterator[Prompts]:
        """Yield prompts of each kind, then prompts whose length is near a number in a constraint.

        The lengths are up to one token longer or two tokens shorter, so that the generated tokens also reach the
        number.
        """
        yield from self.lengths.all_kinds()
        numbers = numbers_in_constraints(self.programs)
        nearby = sorted({number + offset for number in numbers for offset in range(1 - STEPS, 2)})
        batches = sorted({1, self.lengths.batch})
        batches_and_padding = [*((batch, False) for batch in batches), (self.lengths.batch, True)]
        candidates = (
            Prompts(batch, length, padded) for length in nearby for batch, padded in batches_and_padding if length > 0
        )
        yield from [prompts for prompts in candidates if self.lengths.includes(prompts)][:MAX_BATCHES]

    def _not_served(self) -> RangeNotServed:
        limits = limits_of_programs(self.programs, max_constraints=MAX_PROGRAMS) or "some calls run in eager PyTorch"
        return RangeNotServed(
            f"{len(self.programs)} programs do not serve {self.lengths}: {limits}",
            fix="use a smaller --prompt-length and --new-tokens, or another model: the code of this model branches on "
            "the lengths of its inputs",
        )
