"""Programs from an artifact: stored text, bound to a model, and compiled by Python at the first call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from thunder_core.backend.parallel.backward_pieces import GradientArrivals
from thunder_core.backend.runtime.agreement import compare_collectives_first
from thunder_core.backend.runtime.autograd_signature import RECORDED
from thunder_core.backend.runtime.generate import executable_at_first_call
from thunder_core.backend.runtime.program import FUNCTION_NAMES, Program, Stage
from thunder_core.backend.runtime.prologues.quick_prologue import Prepare
from thunder_core.backend.runtime.prologues.stored_prologue import StoredPrologue, trace_of_listing
from thunder_core.foundation.errors import SourceLine
from thunder_core.tracing.analysis.collectives import Collective
from thunder_core.tracing.analysis.skipped_statements import SkippedStatements
from thunder_core.tracing.capture.torch_facts.settings import Setting, settings_in
from thunder_core.tracing.capture.torch_facts.switches import names_autocast_switch
from thunder_core.tracing.ir.listing import Listing
from thunder_core.tracing.ir.printer import Source
from thunder_core.tracing.ir.requirement import Requirement, StatedGuard
from thunder_core.tracing.ir.trace import Trace
from thunder_core.workflow.artifact.format.backward import StoredDerivative
from thunder_core.workflow.artifact.format.constants import ConstantFinder
from thunder_core.workflow.artifact.format.cubins import Cubins, keep_cubins, read_cubins
from thunder_core.workflow.artifact.format.manifest import (
    CONSTANTS,
    ProgramFacts,
    StageFacts,
    StoredAutogradSignature,
    running_stages,
)
from thunder_core.workflow.artifact.format.read import Artifact, damage_error
from thunder_core.workflow.artifact.format.tensors import read_tensors
from thunder_core.workflow.artifact.trust.trust import Trust, trust_in


@dataclass(frozen=True, eq=False)
class StoredTrace(Trace):
    """A trace that consists of its source alone: it prints and runs, but has no bound symbols to transform."""

    text: str = ""

    def __str__(self) -> str:
        return self.text


@dataclass(eq=False)
class StoredProgram(Program):
    """A program that runs the stored source of an artifact; its only stages are the stages that run.

    `read_prologue` returns the lines of the prologue. The kernels `cubins` are registered at the first call. Later
    tokens of a generation skip the statements `skipped` of the prologue.
    """

    sources: Mapping[str, Source] = field(default_factory=dict)
    read_prologue: Callable[[], Listing] | None = None
    written: tuple[int, ...] | None = None
    cubins: Cubins = field(default_factory=dict)
    collectives: Mapping[str, Sequence[Collective]] = field(default_factory=dict)
    skipped: SkippedStatements | None = None

    def build_prologue(self) -> Prepare:
        """Return the function that checks the guards, and that skips statements for later tokens of a generation."""
        prepare = super().build_prologue()
        if self.skipped is None:
            return prepare
        return StoredPrologue(lambda: self.last("prologue"), prepare, self.skipped).prepare

    def written_before_last_check(self) -> tuple[int, ...] | None:
        """Return the inputs that the program may have written to before its last check of a value."""
        return self.written

    def switches_autocast(self) -> bool:
        """Return whether the stored source of the computation changes autocast's state."""
        return names_autocast_switch(self.sources["computation"].text)

    def settings_changed(self) -> tuple[Setting, ...]:
        """Return the settings of PyTorch that the stored source of the computation changes."""
        return settings_in(self.sources["computation"].text)

    def last(self, name: str) -> Trace:
        """Return the trace that runs; only the prologue has statements."""
        if name != "prologue" or self.read_prologue is None:
            return super().last(name)
        return trace_of_listing(self.read_prologue(), self.sources[name].constants)

    def source(self, name: str) -> Source:
        """Return the text that runs, as stored."""
        return self.sources[name]

    def build_function(self, name: str) -> Callable[..., Any]:
        """Return the function that the stored source defines; the source is compiled at the first call."""
        function = executable_at_first_call(self.sources[name], name, lambda: keep_cubins(self.cubins))
        return compare_collectives_first(function, self.collectives.get(name, ()))


def stored_programs(
    artifact: Artifact, subject: object, *, trust: Trust | None = None, strict: bool = False
) -> list[Program]:
    """Return every program of an artifact, bound to a subject; the code of a program runs only when it is called.

    By default, the subject's own modules are trusted. If `strict` is set, gradients without a saved backward are
    refused. Raises `ArtifactForeign` if the subject does not match, and `ImportRefused` for constants of modules that
    may not be imported.
    """
    finder = ConstantFinder(subject, stored_tensors(artifact), artifact.content, trust or trust_in(subject))
    for number, facts in enumerate(artifact.manifest.programs):
        if missing := [name for name in FUNCTION_NAMES if name not in running_stages(facts.stages)]:
            raise damage_error(artifact.folder, f"program {number} has no {' and no '.join(missing)}")
        if facts.derivative is not None and not is_consistent(facts, facts.derivative):
            raise damage_error(artifact.folder, f"the facts about the backward of program {number} are inconsistent")
        lines = running_stages(facts.stages)["prologue"].lines
        if facts.skipped is not None and not facts.skipped.is_within(lines):
            raise damage_error(artifact.folder, f"program {number} skips statements that its prologue does not have")
    cubins = read_cubins(artifact)
    return [stored_program(artifact, facts, finder, cubins, strict=strict) for facts in artifact.manifest.programs]


def is_consistent(facts: ProgramFacts, derivative: StoredAutogradSignature) -> bool:
    """Whether the facts about a derivative are complete and consistent with each other."""
    number = len(derivative.results)
    stages = [(stage.trace, stage.number) for stage in facts.stages]
    backwards = [stage for stage in facts.stages if stage.trace == "backward"]
    masks = [stage.has_cotangent for stage in backwards]
    gradients = len(derivative.requires_grad_inputs)
    is_cut = any(stage.trace == RECORDED and stage.runs for stage in facts.stages)
    return (
        stages.count(("computation", derivative.body)) == 1
        and all(0 <= index < derivative.count for index in derivative.results)
        and len(derivative.strides) == number
        and is_cut == bool(derivative.dependent)
        and all(result.place in derivative.results for result in derivative.dependent)
        and all(len(has_cotangent) == number for has_cotangent in masks)
        and all(len(stage.gradient_lines) == len(stage.gradient_bytes) in (0, gradients) for stage in backwards)
        and all(-1 <= line < stage.lines for stage in backwards for line in stage.gradient_lines)
    )


def stored_program(
    artifact: Artifact, facts: ProgramFacts, finder: ConstantFinder, cubins: Cubins, *, strict: bool
) -> StoredProgram:
    """Return one program of an artifact, with its constants restored."""
    stages = running_stages(facts.stages)
    sources = {name: stored_source(artifact, stages[name], finder) for name in FUNCTION_NAMES}
    return StoredProgram(
        stages=tuple(stored_stage(stages[name], sources[name]) for name in sources),
        guards=stated_guards(facts),
        sharp_edges=facts.sharp_edges,
        derivative=stored_derivative(artifact, facts, finder, strict=strict),
        no_backward_reason=facts.no_backward_reason,
        observed=facts.observed,
        sources=sources,
        read_prologue=artifact.read_listing(stages["prologue"]),
        written=facts.written,
        cubins=cubins,
        collectives={name: collectives_in(stages[name]) for name in sources},
        skipped=facts.skipped,
    )


def collectives_in(stage: StageFacts) -> list[Collective]:
    """Return the collectives of a stage that runs."""
    return [
        Collective(
            facts.kind,
            facts.group,
            facts.facts,
            facts.bytes,
            SourceLine(facts.file, facts.line, facts.function) if facts.file else None,
        )
        for facts in stage.collectives
    ]


def stated_guards(facts: ProgramFacts) -> tuple[Requirement, ...]:
    """Return the guards of a stored program: the guards in words, then the constraints, which are stored as data."""
    numbers, tuples = dict(facts.numbers), frozenset(facts.tuples)
    guards_in_words = facts.guards[: len(facts.guards) - len(facts.constraints)]
    path_and_words = (guard.partition(": ") for guard in guards_in_words)
    guards = (
        StatedGuard(path, words, guards_number=index in numbers, guards_tuple=index in tuples)
        for index, (path, _, words) in enumerate(path_and_words)
    )
    return (*guards, *facts.constraints)


def stored_derivative(
    artifact: Artifact, facts: ProgramFacts, finder: ConstantFinder, *, strict: bool
) -> StoredDerivative | None:
    """Return the stored derivative of a program, bound to its subject; None if the program has none."""
    if facts.derivative is None:
        return None
    derivative = facts.derivative
    (body,) = (stage for stage in facts.stages if (stage.trace, stage.number) == ("computation", derivative.body))
    stages = [stage for stage in facts.stages if stage.trace in ("tail", "backward", RECORDED) and stage.runs]
    pairs = [(stage, stored_source(artifact, stage, finder)) for stage in stages]
    recorded = stored_source(artifact, body, finder)
    return StoredDerivative(
        signature=derivative.signature,
        body=stored_stage(body, recorded).trace,
        stages=tuple(stored_stage(*pair) for pair in pairs),
        recorded=recorded,
        rules=derivative.rules,
        tail=next((source for stage, source in pairs if stage.trace == "tail"), None),
        cut=next((source for stage, source in pairs if stage.trace == RECORDED), None),
        backwards={stage.has_cotangent: source for stage, source in pairs if stage.trace == "backward"},
        arrivals={
            stage.has_cotangent: GradientArrivals(stage.gradient_lines, stage.gradient_bytes)
            for stage in stages
            if stage.gradient_lines
        },
        collectives={stage.has_cotangent: collectives_in(stage) for stage in stages},
        folder=artifact.folder,
        strict=strict,
    )


def stored_source(artifact: Artifact, stage: StageFacts, finder: ConstantFinder) -> Source:
    """Return the text of a stage with the objects that the text refers to by name."""
    needed = {name: facts for name, facts in stage.constants.items() if facts.kind != "lost"}
    find = finder.compared_object if stage.trace == "prologue" else finder.value
    return Source(artifact.source(stage), {name: find(name, facts) for name, facts in needed.items()})


def stored_tensors(artifact: Artifact) -> dict[str, torch.Tensor]:
    """Return the constant tensors of the traces, by their keys."""
    if CONSTANTS not in artifact.manifest.files:
        return {}
    return read_tensors(artifact, CONSTANTS)


def stored_stage(stage: StageFacts, source: Source) -> Stage:
    """Return a stage that runs."""
    trace = StoredTrace(stage.trace, inputs=(), bound_symbols=(), output=None, made_by=stage.made_by, text=source.text)
    return Stage(trace, stage.seconds, stage.has_cotangent)
