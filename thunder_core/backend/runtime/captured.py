"""The graphs that Dynamo captured of a subject, each compiled separately, and the lines that run in eager PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, field

from thunder_core.backend.runtime.compiled import Specializations
from thunder_core.foundation.errors import SourceLine


@dataclass(frozen=True)
class Split:
    """A line at which Dynamo ended a graph: the `reason`, and the user's source line, which runs in eager PyTorch.

    If `function` is set, Dynamo captured nothing of that function: the function runs in eager PyTorch, except for
    called functions that have graphs.
    """

    reason: str
    where: SourceLine | None
    function: str = ""

    def __str__(self) -> str:
        eager = f"all of `{self.function}`" if self.function else "the line"
        at = "" if self.where is None else f" at {self.where}"
        return f"{eager} runs in eager PyTorch{at}: {self.reason}"


@dataclass(frozen=True, eq=False)
class CapturedGraph:
    """A graph that Dynamo captured, as Python `code`, and the programs that were compiled from it.

    `last_traces` and similar functions accept a captured graph like a compiled function. `where` is the source line of
    the graph's first operation.
    """

    code: str
    where: SourceLine | None
    _thunder: Specializations


@dataclass(eq=False)
class CapturedSubject:
    """A subject that Dynamo has traced: the captured graphs, and the splits between them."""

    graphs: list[CapturedGraph] = field(default_factory=list)
    splits: list[Split] = field(default_factory=list)

    @property
    def all_specializations(self) -> list[Specializations]:
        """The programs of each graph."""
        return [graph._thunder for graph in self.graphs]

    def note(self, split: Split) -> None:
        """Add a split, unless the list has it: Dynamo repeats a split when it captures a function for other inputs."""
        if split not in self.splits:
            self.splits.append(split)
