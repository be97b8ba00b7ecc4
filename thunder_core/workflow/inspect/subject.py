"""The subject of an inspection: the traces of one program at every stage, from an artifact or from this process."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

from thunder_core.foundation.errors import NoSuchTrace
from thunder_core.tracing.ir.listing import Listing
from thunder_core.tracing.ir.requirement import StatedConstraint
from thunder_core.workflow.artifact.format.manifest import WEIGHTS
from thunder_core.workflow.artifact.format.program_facts import TRACES, StageFacts, results_in_words
from thunder_core.workflow.artifact.format.read import Artifact

UNKNOWN_REASON = "the artifact is from an earlier version of Thunder, which compiled no backward"
GRAD = ("torch.is_grad_enabled()", "was True")  # the guard of a program that was traced with autograd enabled


@dataclass(frozen=True)
class InspectedStage:
    """A trace after one transform; its lines are read when they are needed."""

    facts: StageFacts
    read: Callable[[], Listing] = field(repr=False)

    @property
    def title(self) -> str:
        """The title, such as `computation, stage 2: drop dead code`."""
        return f"{self.facts.trace}, stage {self.short}"

    @property
    def short(self) -> str:
        """The number and the transform, such as `2: drop dead code`."""
        return f"{self.facts.number}: {self.made_by}"

    @property
    def made_by(self) -> str:
        """The transform; for a backward of only some results, these results are added."""
        some = not all(self.facts.has_cotangent)
        return f"{self.facts.made_by}, for {results_in_words(self.facts.has_cotangent)}" if some else self.facts.made_by


@dataclass(frozen=True)
class Subject:
    """The stages of one program, and the facts that are needed to run them again.

    `source` is the origin of the model. `example` are the names of the traced keyword arguments, which are in the
    artifact's `folder`; without them, random inputs of the sizes `random_inputs` are used. `tensors` has small constant
    tensors as literals. `weights` is the size in bytes of the weights in the artifact, and `validation` is the
    artifact's validation state. `constraints` are the prologue's checks of symbols. `grad` says whether autograd was
    enabled, `train` whether the model is in train mode, and `no_backward_reason` is the reason if there is no backward.
    """

    name: str
    program: int
    stages: tuple[InspectedStage, ...]
    source: Mapping[str, object] = field(default_factory=dict)
    example: tuple[str, ...] = ()
    folder: Path | None = None
    random_inputs: Mapping[str, int] = field(default_factory=dict)
    tensors: Mapping[str, str] = field(default_factory=dict)
    weights: int | None = None
    validation: str = ""
    grad: bool = False
    train: bool = False
    no_backward_reason: str = UNKNOWN_REASON
    constraints: tuple[StatedConstraint, ...] = ()

    @property
    def has_code(self) -> bool:
        """Whether the model has its own Python code, which runs when the model is built."""
        return bool(self.source.get("trust_remote_code"))

    @cached_property
    def traces(self) -> dict[str, list[InspectedStage]]:
        """The stages of each existing trace."""
        stages_by_trace = {name: [stage for stage in self.stages if stage.facts.trace == name] for name in TRACES}
        return {name: stages for name, stages in stages_by_trace.items() if stages}

    def stage(self, trace: str, number_or_name: str | None = None) -> InspectedStage:
        """Return a stage of a trace by number or name, by default the stage that runs; raise `NoSuchTrace`."""
        if trace not in self.traces:
            raise self._no_such_trace(trace)
        stages = self.traces[trace]
        if number_or_name is None:
            return stages[-1]
        if re.fullmatch(r"-?[0-9]+", number_or_name):
            matching = [stage for stage in stages if stage.facts.number == int(number_or_name)]
        else:
            matching = stages_with_name(stages, number_or_name)
        if len(matching) != 1:
            problem = (
                f"{number_or_name!r} matches {len(matching)} stages"
                if matching
                else f"there is no stage {number_or_name!r}"
            )
            stage_names = ", ".join(f"{stage.facts.number} {stage.facts.name}" for stage in stages)
            raise NoSuchTrace(f"{problem} of the {trace} trace", fix=f"name one of: {stage_names}")
        return matching[0]

    def before(self, stage: InspectedStage) -> list[InspectedStage]:
        """Return the stages from which a stage was made, in order."""
        stages = self.traces[stage.facts.trace]
        earlier = stages[: stages.index(stage)]
        return [previous for previous in earlier if previous.facts.has_cotangent in ((), stage.facts.has_cotangent)]

    def _no_such_trace(self, trace: str) -> NoSuchTrace:
        return NoSuchTrace(self.reason_of_absence(trace), fix=f"name one of: {', '.join(self.traces)}")

    def reason_of_absence(self, trace: str) -> str:
        """Return the reason why a trace does not exist, in words."""
        if trace == "tail" and "backward" in self.traces:
            return "there is no tail trace: the program returns no views that autograd needs to know"
        if trace in ("tail", "backward"):
            why = self.no_backward_reason or UNKNOWN_REASON
            return f"there is no {trace} trace, because the program has no compiled backward: {why}"
        return f"there is no trace called {trace!r}"


def stages_with_name(stages: list[InspectedStage], name: str) -> list[InspectedStage]:
    """Return the stages with exactly this name or, if there are none, the stages whose names contain it."""
    plain = "-".join(name.lower().replace("_", "-").split())
    exact = [stage for stage in stages if stage.facts.name == plain]
    return exact or [stage for stage in stages if plain in stage.facts.name]


def subject_of(artifact: Artifact, program: int = 0) -> Subject:
    """Return a program of an artifact; lines are read from its files when they are requested."""
    manifest = artifact.manifest
    if not 0 <= program < len(manifest.programs):
        raise NoSuchTrace(
            f"there is no program {program} in {artifact.folder}",
            fix=f"use one of its programs: {', '.join(map(str, range(len(manifest.programs))))}",
        )
    facts = manifest.programs[program]
    stages = (InspectedStage(stage, _reader(artifact, stage)) for stage in facts.stages)
    return Subject(
        manifest.subject,
        program,
        tuple(stages),
        dict(manifest.source),
        manifest.example,
        folder=artifact.folder,
        weights=manifest.files[WEIGHTS].size if manifest.weights else 0,
        validation=manifest.validation,
        grad=GRAD in facts.paths_and_words,
        random_inputs=dict(manifest.random_inputs),
        train=manifest.train,
        no_backward_reason=facts.no_backward_reason,
        constraints=facts.constraints,
    )


def _reader(artifact: Artifact, facts: StageFacts) -> Callable[[], Listing]:
    return cache(lambda: artifact.listing(facts))
