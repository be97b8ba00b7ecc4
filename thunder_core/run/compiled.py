"""Compiled functions: a cache of programs, asked in turn, and traced again when none takes the inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from thunder_core.errors import Bug
from thunder_core.ir.objects import Refused
from thunder_core.run.program import Program

Compiler = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Program]

# What evaluating a path may raise when the outside world has another shape than it had.
NO_WAY = (Refused, AttributeError, KeyError, IndexError, TypeError, ValueError)


@dataclass(eq=False)
class Specializations:
    """The programs of one subject (a function or module), the most recently used first."""

    subject: Callable[..., Any]
    compiler: Compiler
    programs: list[Program] = field(default_factory=list)
    last: Program | None = None
    hits: int = 0
    misses: int = 0
    limit: int = 64

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for index, program in enumerate(self.programs):
            try:
                inputs, outside = program.prepare(self.subject, args, kwargs)
            except NO_WAY:
                continue
            if index:
                self.programs.insert(0, self.programs.pop(index))
            self.hits += 1
            self.last = program
            return program.run(inputs, outside)
        return self._compile(args, kwargs)

    def _compile(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.misses += 1
        program = self.compiler(self.subject, args, kwargs)
        try:
            inputs, outside = program.prepare(self.subject, args, kwargs)
        except Refused as refused:
            raise Bug(
                f"the guards of a new program refuse its own inputs: {program.guards[refused.number]}",
                fix="report this with the program that was compiled",
            ) from None
        self.programs.insert(0, program)
        del self.programs[self.limit :]
        self.last = program
        return program.run(inputs, outside)
