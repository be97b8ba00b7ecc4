"""The manifest of an artifact: its content, its purpose, and the digest of every file."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import AwareDatetime, JsonValue

from thunder_core.foundation.options.compile_options import CompileOptions
from thunder_core.foundation.options.generation_lengths import GenerationLengths
from thunder_core.foundation.storage.manifest import FileFacts, SealedManifest, StoredFacts
from thunder_core.workflow.artifact.format.program_facts import ConstantFacts, ProgramFacts

SCHEMA_VERSION: Literal[2] = 2
SIGNATURE = "manifest.json.sig"  # next to the manifest, which does not list this file
FORMER_SIGNATURE = "signature.json"  # the same file of artifacts of Thunder 0.2.0
CONSTANTS = "weights/constants.safetensors"
WEIGHTS = "weights/model.safetensors"
CONFIG = "weights/config.json"
GENERATION = "weights/generation_config.json"
KERNELS = "kernels"
EXAMPLE = "example.safetensors"

ValidationState = Literal["validated", "pending", "off"]


class PartFacts(StoredFacts):
    """A transform, a lookaside or an operator: its class, and its fields as literals or imports.

    `methods` says whether a transform adds methods to the compiled module, `prepares` whether it changes the model
    before tracing, `prepares_by_data` whether it does so with data that is not stored, and `before_call` whether it
    runs a function before each call. `operations` are the modules that define the transform's operations. The programs
    of a transform that `is_parallel` communicate with other ranks.
    """

    path: str
    options: dict[str, ConstantFacts] = {}
    methods: bool = False
    prepares: bool = False
    prepares_by_data: bool = False
    before_call: bool = False
    is_parallel: bool = False
    operations: tuple[str, ...] = ()


class CompilerFacts(StoredFacts):
    """The compiler for inputs that no program accepts.

    `executors` are the names in order; `operators` are the executors that consist of one function. If inputs cannot be
    traced, `no_tracing_reason` is the reason.
    """

    options: CompileOptions
    executors: tuple[str, ...] = ()
    transforms: tuple[PartFacts, ...] = ()
    lookasides: tuple[PartFacts, ...] = ()
    operators: tuple[PartFacts, ...] = ()
    no_tracing_reason: str = ""

    @property
    def prepares(self) -> bool:
        """Whether the transforms prepare the model, so that its weights differ from the loaded weights."""
        return any(transform.prepares for transform in self.transforms)

    @property
    def differs_from_eager(self) -> bool:
        """Whether a lookaside replaces calls, or a transform is parallel: eager PyTorch computes something else."""
        return bool(self.lookasides) or any(transform.is_parallel for transform in self.transforms)


class WeightFacts(StoredFacts):
    """A parameter or buffer: a view of the tensor `key` of `weights/model.safetensors`.

    Tied weights have equal facts.
    """

    key: str
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0
    device: str = "cpu"
    requires_grad: bool = False


class EmptyModelFacts(StoredFacts):
    """The facts from which a model is built without weights: its class, and settings that its config file lacks."""

    path: str
    dtype: str
    attention: str = ""
    training: bool = False


class ToleranceFacts(StoredFacts):
    """The error of an output that the recipe of the artifact allows; see `Tolerance`."""

    times_eager: float
    floor: float
    kl: float
    top1: float


class GenerationFacts(StoredFacts):
    """The lengths that the programs generate for, and the seed of the random prompts."""

    lengths: GenerationLengths
    seed: int = 0


class GroupFacts(StoredFacts):
    """A process group that programs communicate in: its name and number of ranks, and the recipe that uses it.

    `process_group` is the recipe's option `process_group`, which is empty for the default group. For an axis of a mesh,
    `axis` is the name of the axis, `stride` the distance between neighbouring ranks, and `world_size` the number of all
    ranks.
    """

    recipe: str
    process_group: str
    name: str
    size: int
    axis: str = ""
    stride: int = 0
    world_size: int = 0


class CubinFacts(StoredFacts):
    """A kernel as machine code for a GPU: the executor that launches it, its file, and the facts for a launch."""

    executor: str
    file: str
    facts: dict[str, JsonValue]


class Manifest(SealedManifest):
    """All facts about an artifact that are not in its other files; `digest` is computed without this field.

    `example` names the keyword arguments in `example.safetensors`, in order. Arguments in `keyword_order` may be passed
    in any order, and arguments in `positional` by position. `random_inputs` has the sizes and the seed of random
    inputs, and `dynamic` the ranges of sizes that the programs support; an artifact for generation has `generation`
    instead.
    `train` is True for training steps, with labels and in train mode. `tolerance` is the tolerance of the validation.
    `weights` are the included parameters and buffers by name, and `empty_model` describes the model without weights
    that they are loaded into. `machine` is the system that compiled regions run on. `cubins` are the kernels of a
    cross-compiled artifact for GPUs of the architecture `target` (`sm_90`). `group` is the process group that the
    programs communicate in, or None; `more_groups` are the groups along the other axes of a mesh.
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
    keyword_order: tuple[str, ...] = ()
    positional: tuple[str, ...] = ()
    random_inputs: dict[str, int] = {}
    dynamic: dict[str, tuple[int, int]] = {}
    generation: GenerationFacts | None = None
    train: bool = False
    validation: ValidationState = "off"
    tolerance: ToleranceFacts | None = None
    weights: dict[str, WeightFacts] = {}
    empty_model: EmptyModelFacts | None = None
    machine: str = ""
    target: str = ""
    cubins: tuple[CubinFacts, ...] = ()
    group: GroupFacts | None = None
    more_groups: tuple[GroupFacts, ...] = ()
    files: dict[str, FileFacts] = {}
    digest: str = ""

    @property
    def needs(self) -> frozenset[str]:
        """The instruction sets of the CPU that the compiled regions use."""
        return frozenset(
            need
            for program in self.programs
            for stage in program.stages
            for constant in stage.constants.values()
            for need in constant.needs
        )
