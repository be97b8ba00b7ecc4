"""Programs from an artifact: the stored text, compiled by Python and bound to a model; nothing is traced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch

from thunder_core.artifact.constants import Finder
from thunder_core.artifact.manifest import CONSTANTS, ProgramFacts, StageFacts, running
from thunder_core.artifact.read import Artifact
from thunder_core.artifact.tensors import read_tensors
from thunder_core.ir.printer import Source
from thunder_core.ir.trace import Trace
from thunder_core.run.program import Program, Stage


@dataclass(frozen=True, eq=False)
class StoredTrace(Trace):
    """A trace of which only the text was kept: it prints and runs, and has no bound symbols to transform."""

    text: str = ""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, eq=False)
class StoredProgram(Program):
    """A program that runs the text of an artifact; its only stages are those that run."""

    sources: Mapping[str, Source] = field(default_factory=dict)

    def source(self, name: str) -> Source:
        """The text that runs, as it was stored."""
        return self.sources[name]


def stored_programs(artifact: Artifact, subject: object) -> list[Program]:
    """Every program of an artifact, bound to a subject. Raises `ArtifactForeign` where it is not the right one."""
    finder = Finder(subject, stored_tensors(artifact), artifact.content)
    return [stored_program(artifact, facts, finder) for facts in artifact.manifest.programs]


def stored_program(artifact: Artifact, facts: ProgramFacts, finder: Finder) -> StoredProgram:
    """One program of an artifact, with its constants given back."""
    stages = running(facts.stages)
    sources = {name: stored_source(artifact, stage, finder) for name, stage in stages.items()}
    return StoredProgram(
        stages=tuple(_stages(stages, sources)), guards=facts.guards, sharp_edges=facts.sharp_edges, sources=sources
    )


def stored_source(artifact: Artifact, stage: StageFacts, finder: Finder) -> Source:
    """The text of a stage with the objects that it refers to by name."""
    needed = {name: kept for name, kept in stage.constants.items() if kept.kind != "lost"}
    return Source(artifact.text(stage.file), {name: finder.value(name, kept) for name, kept in needed.items()})


def stored_tensors(artifact: Artifact) -> dict[str, torch.Tensor]:
    """The tensors that traces hold, by their keys."""
    if CONSTANTS not in artifact.manifest.files:
        return {}
    return read_tensors(artifact, CONSTANTS)


def _stages(stages: Mapping[str, StageFacts], sources: Mapping[str, Source]) -> Iterator[Stage]:
    for name, stage in stages.items():
        trace = StoredTrace(
            name, inputs=(), bound_symbols=(), output=None, made_by=stage.made_by, text=sources[name].text
        )
        yield Stage(trace, stage.seconds)
