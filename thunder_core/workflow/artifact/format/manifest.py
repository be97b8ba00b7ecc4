"""The manifest: what an artifact holds, what it was made for, and the digest of every file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import ClassVar, Literal, Self

from pydantic import AwareDatetime, JsonValue

from thunder_core.backend.runtime.autograd_signature import (
    AutogradSignature,
    DependentResult,
    DimensionOrder,
    Strides,
)
from thunder_core.foundation.options.compile_options import CompileOptions
from thunder_core.foundation.options.generation_lengths import GenerationLengths
from thunder_core.foundation.storage.manifest import FileFacts, SealedManifest, StoredFacts
from thunder_core.tracing.ir.requirement import StatedConstraint

SCHEMA_VERSION: Literal[1] = 1
SIGNATURE = "signature.json"  # beside the manifest, which does not list it
CONSTANTS = "weights/constants.safetensors"
WEIGHTS = "weights/model.safetensors"
CONFIG = "weights/config.json"
GENERATION = "weights/generation_config.json"
KERNELS = "kernels"
EXAMPLE = "example.safetensors"
TRACES = ("prologue", "computation", "tail", "backward", "epilogue")

ConstantKind = Literal["literal", "import", "tensor", "way", "region", "function", "lost"]
Step = tuple[str, str | int | None]
ValidationState = Literal["validated", "pending", "off"]


class ConstantFacts(StoredFacts):
    """The facts by which an object is had again that a trace refers to by name.

    `literal`: from its text; `import`: `module:qualname`, and where its code is, if it has some, `module:qualname` of
    that; `tensor`: from `weights/constants.safetensors` under this key, laid out with these strides; `way`: step by
    step from the subject, where `text` says what is found there and `code` is the digest of its source; `region`:
    machine code from these `files` (the Python, and the library that it calls), which `needs` these instruction sets of
    the CPU; `function`: the application of the `torch.autograd.Function` at `module:qualname`; `lost`: it cannot be had
    again, which only traces that do not run may hold.
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


class StageFacts(StoredFacts):
    """One trace as one step left it: its Python file, the file of its lines' metadata, and what the step changed.

    Of a backward, `given` says for which results it takes gradients; of each of these, one stage runs.
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
    given: tuple[bool, ...] = ()
    constants: dict[str, ConstantFacts] = {}


class DependentResultFacts(StoredFacts):
    """A `DependentResult` as manifests hold it."""

    place: int
    sources: tuple[int, ...]
    outputs: tuple[int, ...]


class StoredAutogradSignature(StoredFacts):
    """An autograd signature, and the number of the computation's stage that autograd records instead of a backward.

    `strides` has for each gradient its strides, or where a size is symbolic the rank of each dimension in memory, from
    the fastest on, as a negative number: -1, -2. `followed` are the signature's `requires_grad_inputs`, `viewed` its
    `tail_inputs`, and `within`, which earlier versions wrote, is its `downstream`.
    `rules` are the operations of the computation whose derivatives a user gave, which autograd cannot record.
    """

    count: int
    results: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    followed: tuple[int, ...]
    random: bool = False
    writes: bool = False
    viewed: tuple[int, ...] = ()
    beneath_autocast: bool = False
    within: tuple[tuple[int, ...], ...] = ()
    dependent: tuple[DependentResultFacts, ...] = ()
    rules: tuple[str, ...] = ()
    body: int

    @classmethod
    def of(cls, signature: AutogradSignature, body: int, rules: tuple[str, ...] = ()) -> Self:
        """The signature as manifests hold it."""
        return cls(
            count=signature.count,
            results=signature.results,
            strides=tuple(map(_strides_or_ranks, signature.layouts)),
            followed=signature.requires_grad_inputs,
            random=signature.random,
            writes=signature.writes,
            viewed=signature.tail_inputs,
            beneath_autocast=signature.beneath_autocast,
            within=signature.downstream,
            dependent=tuple(DependentResultFacts(**asdict(result)) for result in signature.dependent),
            rules=rules,
            body=body,
        )

    @property
    def signature(self) -> AutogradSignature:
        """The signature as programs have it."""
        return AutogradSignature(
            count=self.count,
            results=self.results,
            layouts=tuple(map(_layout, self.strides)),
            requires_grad_inputs=self.followed,
            random=self.random,
            writes=self.writes,
            tail_inputs=self.viewed,
            beneath_autocast=self.beneath_autocast,
            downstream=self.within,
            dependent=tuple(DependentResult(**result.model_dump()) for result in self.dependent),
        )


def _strides_or_ranks(layout: Strides | DimensionOrder) -> tuple[int, ...]:
    """A layout as manifests hold it: strides, or the negative rank of each dimension in memory."""
    if isinstance(layout, Strides):
        return layout.strides
    return tuple(place - len(layout.dimensions) for place in map(layout.dimensions.index, sorted(layout.dimensions)))


def _layout(stored: tuple[int, ...]) -> Strides | DimensionOrder:
    """The layout that a manifest holds as strides, or as negative ranks."""
    if stored and stored[0] < 0:
        return DimensionOrder(tuple(sorted(range(len(stored)), key=stored.__getitem__)))
    return Strides(stored)


class ProgramFacts(StoredFacts):
    """One program: its stages in order, and its guards and sharp edges in words; `constraints` are guards on symbols.

    One with a `derivative` has backwards of its own; `recorded` says why one that is differentiated has none. One that
    checks values of tensors may have `written` to inputs at these places before it does so for the last time.
    `observed` has the finite numbers and sizes that it was traced with, by their paths, and `numbers` the guards, by
    their places, that want the number at a path to be what it was: another one is symbolic in the next program.
    """

    stages: tuple[StageFacts, ...]
    guards: tuple[str, ...] = ()
    constraints: tuple[StatedConstraint, ...] = ()
    sharp_edges: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    derivative: StoredAutogradSignature | None = None
    recorded: str = ""
    written: tuple[int, ...] | None = None
    observed: dict[str, int | float] = {}
    numbers: tuple[tuple[int, str], ...] = ()


class PartFacts(StoredFacts):
    """A transform, a lookaside or an operator by its class, with its fields as literals or as what is imported.

    `methods` says of a transform that it has some for the compiled module, in the place of the model's own; `prepares`
    that it changes the model before it is traced, and `before_call` that it has something to do before each call.
    `operations` are the modules that define operations of its own.
    """

    path: str
    options: dict[str, ConstantFacts] = {}
    methods: bool = False
    prepares: bool = False
    before_call: bool = False
    operations: tuple[str, ...] = ()


class CompilerFacts(StoredFacts):
    """The compiler of inputs that no program takes; `lacks` says why they cannot be traced, where they cannot.

    Of the executors, which are named in their order, `operators` are those that consist of one function each.
    """

    options: CompileOptions
    executors: tuple[str, ...] = ()
    transforms: tuple[PartFacts, ...] = ()
    lookasides: tuple[PartFacts, ...] = ()
    operators: tuple[PartFacts, ...] = ()
    lacks: str = ""

    @property
    def prepares(self) -> bool:
        """Whether its transforms prepare the model, whose weights are then not those that were loaded."""
        return any(transform.prepares for transform in self.transforms)


class WeightFacts(StoredFacts):
    """A parameter or buffer: a view of the tensor `key` of `weights/model.safetensors`; tied ones are equal."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0
    device: str = "cpu"
    requires_grad: bool = False


class EmptyModelFacts(StoredFacts):
    """The facts by which a model is built without its weights: its class, and what its config file does not say."""

    path: str
    dtype: str
    attention: str = ""
    training: bool = False


class ToleranceFacts(StoredFacts):
    """The distance that an output may have from the reference, by the recipe of the artifact; see `Tolerance`."""

    times_eager: float
    floor: float
    kl: float
    top1: float


class GenerationFacts(StoredFacts):
    """The lengths of generation that the programs are for, and the seed of the prompts that were drawn."""

    lengths: GenerationLengths
    seed: int = 0


class GroupFacts(StoredFacts):
    """The process group that programs communicate in: its name and number of ranks, and the recipe that uses it.

    `asked` is the recipe's option `process_group`, which is empty for the default group.
    """

    recipe: str
    asked: str
    name: str
    size: int


class CubinFacts(StoredFacts):
    """A kernel as machine code of a GPU: the executor that launches it, its file, and what a launch must know."""

    executor: str
    file: str
    facts: dict[str, JsonValue]


class Manifest(SealedManifest):
    """Everything about an artifact that is not in one of its files; `digest` is that of the manifest without itself.

    `example` names the keyword arguments of the call that is kept in `example.safetensors`, in their order; `drawn` are
    the sizes and the seed that they were drawn with, and `dynamic` the ranges of sizes that the programs serve. One
    that is for generation has `generation` in their place. `train`
    says that what is called is a step of training, with labels and in train mode; `tolerance` by what its outputs are
    validated. `weights` are the model's parameters and buffers by their names, where they were included, and `shell`
    the facts of the empty model that they are put into. `machine` is where compiled regions run. `cubins` are kernels
    for a GPU of the architecture `target` (`sm_90`), where it was made for one. `group` is the process group that the
    programs communicate in, if they do.
    """

    leaves_out_defaults: ClassVar[bool] = True

    schema_version: int
    thunder: str
    created: AwareDatetime
    recipe: str
    options: dict[str, JsonValue] = {}
    source: dict[str, JsonValue] = {}
    subject: str
    fingerprint: str
    torch: str
    environment: dict[str, JsonValue] = {}
    code: dict[str, str] = {}
    compiler: CompilerFacts
    programs: tuple[ProgramFacts, ...]
    example: tuple[str, ...] = ()
    drawn: dict[str, int] = {}
    dynamic: dict[str, tuple[int, int]] = {}
    generation: GenerationFacts | None = None
    train: bool = False
    validation: ValidationState = "off"
    tolerance: ToleranceFacts | None = None
    weights: dict[str, WeightFacts] = {}
    shell: EmptyModelFacts | None = None
    machine: str = ""
    target: str = ""
    cubins: tuple[CubinFacts, ...] = ()
    group: GroupFacts | None = None
    files: dict[str, FileFacts] = {}
    digest: str = ""

    @property
    def needs(self) -> frozenset[str]:
        """The instruction sets of the CPU that its compiled regions use."""
        return frozenset(
            need
            for program in self.programs
            for stage in program.stages
            for constant in stage.constants.values()
            for need in constant.needs
        )


def executed(program: ProgramFacts) -> list[StageFacts]:
    """The stages of which the text may be executed: those that run, and what autograd records in their place."""
    body = None if program.derivative is None else ("computation", program.derivative.body)
    return [stage for stage in program.stages if stage.runs or (stage.trace, stage.number) == body]


def running(stages: Iterable[StageFacts]) -> dict[str, StageFacts]:
    """The stage of each trace that runs; of backwards, of which there may be several, the last."""
    return {stage.trace: stage for stage in stages if stage.runs}


def in_words(given: tuple[bool, ...]) -> str:
    """The results that gradients may come in for, in words."""
    places = [str(place) for place, one in enumerate(given) if one]
    if len(places) == len(given):
        return "all its results" if len(given) > 1 else "its result"
    return f"result{'s' if len(places) > 1 else ''} {' and '.join(places)} of {len(given)}"
