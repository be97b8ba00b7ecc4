"""The subject of an inspection: the traces of one program at every stage, from an artifact or from this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

from thunder_core.foundation.errors import NoSuchTrace
from thunder_core.tracing.ir.listing import Listing
from thunder_core.tracing.ir.requirement import StatedConstraint
from thunder_core.workflow.artifact.format.manifest import TRACES, WEIGHTS, StageFacts, in_words
from thunder_core.workflow.artifact.format.read import Artifact

UNKNOWN = "an earlier version of Thunder made it, which generated none"
GRAD = "torch.is_grad_enabled(): was True"


@dataclass(frozen=True)
class InspectedStage:
    """A trace as one step left it; its lines are read when they are asked for."""

    facts: StageFacts
    read: Callable[[], Listing] = field(repr=False)

    @property
    def title(self) -> str:
        """For example `computation, stage 2: drop dead code`."""
        return f"{self.facts.trace}, stage {self.short}"

    @property
    def short(self) -> str:
        """For example `2: drop dead code`, which tells it from the others of its trace."""
        return f"{self.facts.number}: {self.made_by}"

    @property
    def made_by(self) -> str:
        """The step that made it and, of a backward for some results alone, for which."""
        some = not all(self.facts.given)
        return f"{self.facts.made_by}, for {in_words(self.facts.given)}" if some else self.facts.made_by


@dataclass(frozen=True)
class Subject:
    """The stages of one program, and what is needed to run them again.

    `source` tells where the model comes from; `example` are the names of the keyword arguments that were traced, which
    lie in the artifact's `folder` or, where there is none, are drawn anew with the sizes in `drawn`; `tensors` has
    small constant tensors as literals. `weights` is the size in bytes of those that the artifact holds, and
    `validation` its state; `constraints` are what its prologue checks of symbols. `grad` says whether autograd was on,
    `train` whether the model was put into training, and `recorded` why there is no backward.
    """

    name: str
    program: int
    stages: tuple[InspectedStage, ...]
    source: Mapping[str, object] = field(default_factory=dict)
    example: tuple[str, ...] = ()
    folder: Path | None = None
    drawn: Mapping[str, int] = field(default_factory=dict)
    tensors: Mapping[str, str] = field(default_factory=dict)
    weights: int | None = None
    validation: str = ""
    grad: bool = False
    train: bool = False
    recorded: str = UNKNOWN
    constraints: tuple[StatedConstraint, ...] = ()

    @property
    def has_code(self) -> bool:
        """Whether the model brings Python code of its own, which runs when it is built."""
        return bool(self.source.get("trust_remote_code"))

    @cached_property
    def traces(self) -> dict[str, list[InspectedStage]]:
        """The stages of each trace that there is."""
        stages_by_trace = {name: [stage for stage in self.stages if stage.facts.trace == name] for name in TRACES}
        return {name: stages for name, stages in stages_by_trace.items() if stages}

    def stage(self, trace: str, wanted: str | None = None) -> InspectedStage:
        """A stage of a trace by its number or name, by default the one that runs; raises `NoSuchTrace`."""
        if trace not in self.traces:
            raise self._no_such_trace(trace)
        stages = self.traces[trace]
        if wanted is None:
            return stages[-1]
        if wanted.lstrip("-").isdigit():
            matching = [stage for stage in stages if stage.facts.number == int(wanted)]
        else:
            matching = stages_named(stages, wanted)
        if len(matching) != 1:
            problem = f"{wanted!r} matches {len(matching)} stages" if matching else f"there is no stage {wanted!r}"
            known = ", ".join(f"{stage.facts.number} {stage.facts.name}" for stage in stages)
            raise NoSuchTrace(f"{problem} of the {trace} trace", fix=f"name one of: {known}")
        return matching[0]

    def before(self, stage: InspectedStage) -> list[InspectedStage]:
        """The stages of the same trace that led to one, the latest last."""
        stages = self.traces[stage.facts.trace]
        earlier = stages[: stages.index(stage)]
        return [one for one in earlier if one.facts.given in ((), stage.facts.given)]

    def _no_such_trace(self, trace: str) -> NoSuchTrace:
        return NoSuchTrace(self.absent(trace), fix=f"name one of: {', '.join(self.traces)}")

    def absent(self, trace: str) -> str:
        """The reason why there is no trace of that name."""
        if trace == "tail" and "backward" in self.traces:
            return "there is no tail trace: the program returns no views that autograd needs to know"
        if trace in ("tail", "backward"):
            why = self.recorded or UNKNOWN
            return f"there is no {trace} trace, because the program has no compiled backward: {why}"
        return f"there is no trace called {trace!r}"


def stages_named(stages: list[InspectedStage], wanted: str) -> list[InspectedStage]:
    """The stages of exactly that name or, failing that, whose names hold it."""
    plain = "-".join(wanted.lower().replace("_", "-").split())
    exact = [stage for stage in stages if stage.facts.name == plain]
    return exact or [stage for stage in stages if plain in stage.facts.name]


def subject_of(artifact: Artifact, program: int = 0) -> Subject:
    """A program of an artifact; nothing but the lines that are looked at is read."""
    manifest = artifact.manifest
    if not 0 <= program < len(manifest.programs):
        raise NoSuchTrace(
            f"there is no program {program} in {artifact.folder}",
            fix=f"use one of its programs: {', '.join(map(str, range(len(manifest.programs))))}",
        )
    facts = manifest.programs[program]
    stages = (InspectedStage(one, _reader(artifact, one)) for one in facts.stages)
    return Subject(
        manifest.subject,
        program,
        tuple(stages),
        dict(manifest.source),
        manifest.example,
        folder=artifact.folder,
        weights=manifest.files[WEIGHTS].size if manifest.weights else 0,
        validation=manifest.validation,
        grad=GRAD in facts.guards,
        drawn=dict(manifest.drawn),
        train=manifest.train,
        recorded=facts.recorded,
        constraints=facts.constraints,
    )


def _reader(artifact: Artifact, facts: StageFacts) -> Callable[[], Listing]:
    return cache(lambda: artifact.listing(facts))
