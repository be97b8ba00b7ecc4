"""A program of an artifact as data: its stages with their constants, its guards, and the facts about its backwards."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Literal, Self

from thunder_core.backend.runtime.autograd_signature import (
    AutogradSignature,
    DependentResult,
    DimensionOrder,
    SeparateResults,
    Strides,
)
from thunder_core.foundation.storage.manifest import StoredFacts
from thunder_core.tracing.analysis.catchable_errors import CatchableErrors
from thunder_core.tracing.analysis.skipped_statements import SkippedStatements
from thunder_core.tracing.ir.requirement import StatedConstraint

TRACES = ("prologue", "computation", "tail", "backward", "epilogue")
ConstantKind = Literal["literal", "import", "tensor", "path", "region", "function", "lost"]
Step = tuple[str, str | int | None]


class ConstantFacts(StoredFacts):
    """The facts from which a constant of a trace is restored. The `kind` determines the source of the object:

    - `literal`: its text.
    - `import`: `text` is `module:qualname`, and `code` is the `module:qualname` of its code, if it has code.
    - `tensor`: `text` is a key in `weights/constants.safetensors`, and `stride` the tensor's strides.
    - `path`: `steps` lead from the subject to the object. `text` is the name of the object's type, and `code` the
    digest of its source.
    - `region`: machine code of a fused region. `files` are a Python file and the library that it calls, and `needs` are
    the instruction sets that the code uses.
    - `function`: the method `apply` of the `torch.autograd.Function` at `module:qualname`.
    - `lost`: the object cannot be restored; only traces that do not run may have such constants.
    """

    kind: ConstantKind
    text: str
    device: str = ""
    stride: tuple[int, ...] = ()
    requires_grad: bool = False
    parameter: bool = False
    steps: tuple[Step, ...] = ()
    code: str = ""
    files: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


class CollectiveFacts(StoredFacts):
    """A `Collective` in a manifest, with the file, the line number and the function of its source line."""

    kind: str
    group: str
    facts: tuple[str, ...] = ()
    bytes: int = 0
    file: str = ""
    line: int = 0
    function: str = ""


class StageFacts(StoredFacts):
    """One stage, a trace after one step: its Python file, the file of its lines' metadata, and its changed lines.

    `has_cotangent` marks the results whose gradients a backward takes; for each distinct tuple, one stage runs.
    `gradient_lines` and `gradient_bytes` are the `GradientArrivals` of a backward that runs, or empty if the backward
    is not split into pieces. Ranks compare the `collectives` of a stage that runs.
    """

    trace: str
    number: int
    name: str
    made_by: str
    file: str
    lines_file: str
    lines: int
    seconds: float
    added: int = 0
    removed: int = 0
    runs: bool = False
    has_cotangent: tuple[bool, ...] = ()
    gradient_lines: tuple[int, ...] = ()
    gradient_bytes: tuple[int, ...] = ()
    collectives: tuple[CollectiveFacts, ...] = ()
    constants: dict[str, ConstantFacts] = {}


class ReaderFacts(StoredFacts):
    """A `ValueReader` as stored: its root, or None for the subject itself, and its steps with their keys."""

    root: ConstantFacts | None
    steps: tuple[tuple[str, ConstantFacts], ...]


class DependentResultFacts(StoredFacts):
    """A `DependentResult` as stored in a manifest."""

    place: int
    sources: tuple[int, ...]
    outputs: tuple[int, ...]


class StoredAutogradSignature(StoredFacts):
    """An `AutogradSignature` as stored. `body` is the number of the stage that autograd records without a backward.

    `strides` has the strides of each gradient in elements. If a size is symbolic, `strides` instead has the rank of
    each dimension in memory as a negative number: the fastest dimension has -1, the next has -2. `rules` are the
    operations whose derivatives the user registered; autograd cannot record them. `sharing` and `inputs_of_results` are
    the fields of `SeparateResults`; both are empty in artifacts of earlier versions. `readers` read the values outside
    of the program that the user's own backwards read.
    """

    count: int
    results: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    requires_grad_inputs: tuple[int, ...]
    random: bool = False
    writes: bool = False
    tail_inputs: tuple[int, ...] = ()
    beneath_autocast: bool = False
    downstream: tuple[tuple[int, ...], ...] = ()
    dependent: tuple[DependentResultFacts, ...] = ()
    written: tuple[int, ...] = ()
    kept: tuple[int, ...] | None = None
    rules: tuple[str, ...] = ()
    sharing: tuple[tuple[int, ...], ...] = ()
    inputs_of_results: tuple[tuple[int, ...], ...] = ()
    readers: tuple[ReaderFacts, ...] = ()
    body: int

    @classmethod
    def of(
        cls,
        signature: AutogradSignature,
        body: int,
        rules: tuple[str, ...] = (),
        separate: SeparateResults | None = None,
        readers: tuple[ReaderFacts, ...] = (),
    ) -> Self:
        """Return the facts of a signature."""
        return cls(
            count=signature.count,
            results=signature.results,
            strides=tuple(map(_strides_or_ranks, signature.layouts)),
            requires_grad_inputs=signature.requires_grad_inputs,
            random=signature.random,
            writes=signature.writes,
            tail_inputs=signature.tail_inputs,
            beneath_autocast=signature.beneath_autocast,
            downstream=signature.downstream,
            dependent=tuple(DependentResultFacts(**asdict(result)) for result in signature.dependent),
            written=signature.written,
            kept=signature.kept,
            rules=rules,
            sharing=() if separate is None else tuple(map(_ascending, separate.sharing)),
            inputs_of_results=() if separate is None else tuple(map(_ascending, separate.inputs)),
            readers=readers,
            body=body,
        )

    @property
    def signature(self) -> AutogradSignature:
        """The signature that programs use."""
        return AutogradSignature(
            count=self.count,
            results=self.results,
            layouts=tuple(map(_layout, self.strides)),
            requires_grad_inputs=self.requires_grad_inputs,
            random=self.random,
            writes=self.writes,
            tail_inputs=self.tail_inputs,
            beneath_autocast=self.beneath_autocast,
            downstream=self.downstream,
            dependent=tuple(DependentResult(**result.model_dump()) for result in self.dependent),
            written=self.written,
            kept=self.kept,
        )

    @property
    def separate_results(self) -> SeparateResults | None:
        """The results that can have backward passes of their own; None if they were not stored."""
        if not self.sharing:
            return None
        return SeparateResults(tuple(map(frozenset, self.sharing)), tuple(map(frozenset, self.inputs_of_results)))


def _ascending(numbers: frozenset[int]) -> tuple[int, ...]:
    """Return numbers in ascending order."""
    return tuple(sorted(numbers))


def _strides_or_ranks(layout: Strides | DimensionOrder) -> tuple[int, ...]:
    """Return a layout as stored in manifests: strides, or the negative rank of each dimension in memory."""
    if isinstance(layout, Strides):
        return layout.strides
    return tuple(rank - len(layout.dimensions) for rank in map(layout.dimensions.index, sorted(layout.dimensions)))


def _layout(stored: tuple[int, ...]) -> Strides | DimensionOrder:
    """Return the layout that a manifest stores as strides, or as negative ranks."""
    if stored and stored[0] < 0:
        return DimensionOrder(tuple(sorted(range(len(stored)), key=stored.__getitem__)))
    return Strides(stored)


class ProgramFacts(StoredFacts):
    """One program: its stages in order, its guards and sharp edges in words, and its `constraints` on symbols.

    A guard is its path and its words. Artifacts of Thunder 0.2.0 join both in one string. `derivative` describes its
    backwards; if it is None, `no_backward_reason` says why. `written` are the inputs that a program may have written to
    before its last check of a tensor's value. `caught` are the errors that it catches. `has_effects`, `is_repeatable`
    and `written_origins` are properties of `Program`. `observed` has the finite numbers and sizes of the traced inputs,
    by path. `numbers` are the positions and paths of guards that require a number to equal the traced number; a
    different number becomes symbolic in the next program. `tuples` are the positions of guards on tuples of constants.
    Later tokens of a generation skip the statements `skipped` of the prologue.
    """

    stages: tuple[StageFacts, ...]
    guards: tuple[tuple[str, str] | str, ...] = ()
    constraints: tuple[StatedConstraint, ...] = ()
    sharp_edges: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    derivative: StoredAutogradSignature | None = None
    no_backward_reason: str = ""
    written: tuple[int, ...] | None = None
    caught: CatchableErrors | None = None
    has_effects: bool = False
    is_repeatable: bool = False
    written_origins: tuple[str, ...] = ()
    observed: dict[str, int | float] = {}
    numbers: tuple[tuple[int, str], ...] = ()
    tuples: tuple[int, ...] = ()
    skipped: SkippedStatements | None = None

    @property
    def paths_and_words(self) -> list[tuple[str, str]]:
        """The path and the words of each guard."""
        joined_parts = (guard.partition(": ")[::2] if isinstance(guard, str) else guard for guard in self.guards)
        return [(path, words) for path, words in joined_parts]


def executed_stages(program: ProgramFacts) -> list[StageFacts]:
    """Return the stages whose text may be executed: stages that run, and the computation that autograd may record."""
    body = None if program.derivative is None else ("computation", program.derivative.body)
    return [stage for stage in program.stages if stage.runs or (stage.trace, stage.number) == body]


def running_stages(stages: Iterable[StageFacts]) -> dict[str, StageFacts]:
    """Return the stage of each trace that runs; if several backwards run, the last."""
    return {stage.trace: stage for stage in stages if stage.runs}


def stages_with_lines(program: ProgramFacts) -> dict[str, StageFacts]:
    """Return the running stages whose lines a loaded program reads: the prologue, and a computation that checks values.

    The line of a check is the line that reads the value.
    """
    stages = running_stages(program.stages)
    names = ("prologue",) if program.written is None else ("prologue", "computation")
    return {name: stages[name] for name in names}


def results_in_words(has_cotangent: tuple[bool, ...]) -> str:
    """Return the results marked in `has_cotangent`, in words."""
    indices = [str(index) for index, is_given in enumerate(has_cotangent) if is_given]
    if len(indices) == len(has_cotangent):
        return "all its results" if len(has_cotangent) > 1 else "its result"
    return f"result{'s' if len(indices) > 1 else ''} {' and '.join(indices)} of {len(has_cotangent)}"
