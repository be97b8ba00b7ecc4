"""Programs from an artifact: their stored source is bound to a model, and compiled by Python at the first call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch

from thunder_core.backend.parallel.backward_pieces import GradientArrivals
from thunder_core.backend.runtime.agreement import compare_collectives_first
from thunder_core.backend.runtime.autograd_signature import RECORDED
from thunder_core.backend.runtime.blame import generated_frames, statement_at
from thunder_core.backend.runtime.generate import executable_at_first_call
from thunder_core.backend.runtime.program import FUNCTION_NAMES, Program, Stage
from thunder_core.backend.runtime.prologues.settled_prologue import Prepare
from thunder_core.backend.runtime.prologues.stored_prologue import StoredPrologue, trace_of_listing
from thunder_core.foundation.errors import SourceLine
from thunder_core.passes.autodiff.applied.value_readers import STEPS
from thunder_core.tracing.analysis.catchable_errors import CatchableErrors
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
from thunder_core.workflow.artifact.format.manifest import CONSTANTS
from thunder_core.workflow.artifact.format.program_facts import (
    ProgramFacts,
    StageFacts,
    StoredAutogradSignature,
    running_stages,
    stages_with_lines,
)
from thunder_core.workflow.artifact.format.read import Artifact, damage_error
from thunder_core.workflow.artifact.format.readers import stored_reader
from thunder_core.workflow.artifact.format.tensors import read_tensors
from thunder_core.workflow.artifact.trust.trust import Trust, trust_in


@dataclass(frozen=True, eq=False)
class StoredTrace(Trace):
    """A trace of which only the source `text` is stored. It has no bound symbols, so transforms cannot change it."""

    text: str = ""

    def __str__(self) -> str:
        return self.text


@dataclass(eq=False)
class StoredProgram(Program):
    """A program that runs the stored source of an artifact; its only stages are the stages that run.

    `sources` and `collectives` belong to the prologue, the computation and the epilogue, by name. `read_prologue`
    returns the lines of the prologue. `read_computation` returns those of a computation that checks tensor values, and
    is None for another computation. `written` are the inputs that the program may have written to before its last
    check of a tensor's value. `caught` are the errors that the program catches. `cubins` are the kernels of all
    programs, which the first call registers. `skipped` are the statements of the prologue that later tokens of a
    generation skip.
    """

    sources: Mapping[str, Source] = field(default_factory=dict)
    read_prologue: Callable[[], Listing] | None = None
    read_computation: Callable[[], Listing] | None = None
    written: tuple[int, ...] | None = None
    caught: CatchableErrors | None = None
    has_effects: bool = False
    is_repeatable: bool = False
    written_origins: frozenset[str] = frozenset()
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
        """Return the indices of the inputs that the program may have written to before its last check of a value."""
        return self.written

    def caught_errors(self) -> CatchableErrors | None:
        """Return the errors that the computation may raise and that the program catches; None if there are none."""
        return self.caught

    def lines_of(self, error: BaseException) -> frozenset[SourceLine] | None:
        """Return the lines with caught errors at the statement that raised an error; None if it is unknown."""
        statement = statement_of(error)
        return None if statement is None or self.caught is None else self.caught.at_statement(statement)

    def line_of(self, error: BaseException) -> SourceLine | None:
        """Return the user's source line of the statement that raised an error, if the computation checks values."""
        statement, lines = statement_of(error), self._lines_of_statements
        return None if statement is None or statement >= len(lines) else lines[statement]

    @cached_property
    def _lines_of_statements(self) -> tuple[SourceLine | None, ...]:
        """The user's source lines of the computation's statements, if the computation checks values."""
        lines = () if self.read_computation is None else self.read_computation().lines
        return tuple(SourceLine(line.file, line.number, line.function) if line.file else None for line in lines)

    def switches_autocast(self) -> bool:
        """Return whether the stored source of the computation changes autocast's state."""
        return names_autocast_switch(self.sources["computation"].text)

    def settings_changed(self) -> tuple[Setting, ...]:
        """Return the settings of PyTorch that the stored source of the computation changes."""
        return settings_in(self.sources["computation"].text)

    def last(self, name: str) -> Trace:
        """Return the trace that runs. Only the trace of the prologue has bound symbols, one for each stored line."""
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


def statement_of(error: BaseException) -> int | None:
    """Return the index of the statement of a computation that raised an error; None if no statement raised it."""
    frames = generated_frames(error)
    statements = (statement_at("computation", frame.f_code.co_filename, number) for frame, number in frames)
    return next((index for index in statements if index is not None), None)


def stored_programs(
    artifact: Artifact, subject: object, *, trust: Trust | None = None, strict: bool = False
) -> list[Program]:
    """Return every program of an artifact, bound to a subject (the model or function). No code of a program runs yet.

    By default, libraries and the packages of the subject's code are trusted. If `strict` is set, gradients without a
    saved backward are refused. Raises `ArtifactDamaged` if the manifest contradicts itself, `ArtifactForeign` if the
    subject does not match, and `ImportRefused` for constants from Python modules that may not be imported.
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
    result_count = len(derivative.results)
    gradient_count = len(derivative.requires_grad_inputs)
    stages = [(stage.trace, stage.number) for stage in facts.stages]
    backwards = [stage for stage in facts.stages if stage.trace == "backward"]
    has_recorded = any(stage.trace == RECORDED and stage.runs for stage in facts.stages)
    return (
        stages.count(("computation", derivative.body)) == 1
        and all(0 <= index < derivative.count for index in derivative.results)
        and len(derivative.strides) == result_count
        and len(derivative.sharing) == len(derivative.inputs_of_results) in (0, result_count)
        and all(0 <= other < result_count for others in derivative.sharing for other in others)
        and all(kind in STEPS for reader in derivative.readers for kind, _ in reader.steps)
        and has_recorded == bool(derivative.dependent)
        and all(result.place in derivative.results for result in derivative.dependent)
        and all(len(stage.has_cotangent) == result_count for stage in backwards)
        and all(len(stage.gradient_lines) == len(stage.gradient_bytes) in (0, gradient_count) for stage in backwards)
        and all(-1 <= line < stage.lines for stage in backwards for line in stage.gradient_lines)
    )


def stored_program(
    artifact: Artifact, facts: ProgramFacts, finder: ConstantFinder, cubins: Cubins, *, strict: bool
) -> StoredProgram:
    """Return one program of an artifact, with its constants restored."""
    stages = running_stages(facts.stages)
    sources = {name: stored_source(artifact, stages[name], finder) for name in FUNCTION_NAMES}
    read_lines = {
        name: listing_reader(artifact, stage, sources[name]) for name, stage in stages_with_lines(facts).items()
    }
    return StoredProgram(
        stages=tuple(stored_stage(stages[name], sources[name]) for name in sources),
        guards=stated_guards(facts),
        sharp_edges=facts.sharp_edges,
        derivative=stored_derivative(artifact, facts, finder, strict=strict),
        no_backward_reason=facts.no_backward_reason,
        observed=facts.observed,
        sources=sources,
        read_prologue=read_lines["prologue"],
        read_computation=read_lines.get("computation"),
        written=facts.written,
        caught=facts.caught,
        has_effects=facts.has_effects,
        is_repeatable=facts.is_repeatable,
        written_origins=frozenset(facts.written_origins),
        cubins=cubins,
        collectives={name: collectives_in(stages[name]) for name in sources},
        skipped=facts.skipped,
    )


def listing_reader(artifact: Artifact, stage: StageFacts, source: Source) -> Callable[[], Listing]:
    """Return a function that reads the lines of a stage from memory, because the folder may be removed later."""
    return partial(artifact.listing_from, stage, artifact.text(stage.lines_file), source.text)


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
    """Return the guards of a stored program.

    The last of `facts.guards` are constraints, which are also stored as data, and returned as such.
    """
    numbers, tuples = dict(facts.numbers), frozenset(facts.tuples)
    guards = (
        StatedGuard(path, words, guards_number=index in numbers, guards_tuple=index in tuples)
        for index, (path, words) in enumerate(facts.paths_and_words[: len(facts.guards) - len(facts.constraints)])
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
    backwards = [stage for stage in stages if stage.trace == "backward"]
    recorded = stored_source(artifact, body, finder)
    return StoredDerivative(
        signature=derivative.signature,
        separate_results=derivative.separate_results,
        body=stored_stage(body, recorded).trace,
        stages=tuple(stored_stage(*pair) for pair in pairs),
        recorded=recorded,
        rules=derivative.rules,
        readers=tuple(stored_reader(reader, finder) for reader in derivative.readers),
        tail=next((source for stage, source in pairs if stage.trace == "tail"), None),
        cut=next((source for stage, source in pairs if stage.trace == RECORDED), None),
        backwards={stage.has_cotangent: source for stage, source in pairs if stage.trace == "backward"},
        arrivals={
            stage.has_cotangent: GradientArrivals(stage.gradient_lines, stage.gradient_bytes)
            for stage in backwards
            if stage.gradient_lines
        },
        collectives={stage.has_cotangent: collectives_in(stage) for stage in backwards},
        other_collectives={
            stage.trace: collectives_in(stage) for stage in (body, *stages) if stage.trace != "backward"
        },
        folder=artifact.folder,
        strict=strict,
    )


def stored_source(artifact: Artifact, stage: StageFacts, finder: ConstantFinder) -> Source:
    """Return the text of a stage with the objects that the text refers to by name, except objects that are `lost`."""
    find = finder.compared_object if stage.trace == "prologue" else finder.value
    constants = {name: find(name, facts) for name, facts in stage.constants.items() if facts.kind != "lost"}
    return Source(artifact.source(stage), constants)


def stored_tensors(artifact: Artifact) -> dict[str, torch.Tensor]:
    """Return the constant tensors of the traces, by their keys in the file of constants."""
    if CONSTANTS not in artifact.manifest.files:
        return {}
    return read_tensors(artifact, CONSTANTS)


def stored_stage(stage: StageFacts, source: Source) -> Stage:
    """Return a stage that runs, with its source as the trace."""
    trace = StoredTrace(stage.trace, inputs=(), bound_symbols=(), output=None, made_by=stage.made_by, text=source.text)
    return Stage(trace, stage.seconds, stage.has_cotangent)
