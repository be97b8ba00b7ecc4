"""`thunder_core.load`: load a compiled module or function from an artifact, without tracing or compiling."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, cast

import torch

from thunder_core.backend.runtime.argument_order import ArgumentOrder
from thunder_core.backend.runtime.compiled import Specializations
from thunder_core.backend.runtime.dispatch import RecentPrograms
from thunder_core.backend.runtime.module import compiled_function, compiled_module
from thunder_core.backend.runtime.program import Program
from thunder_core.backend.runtime.program_compiler import ProgramCompiler
from thunder_core.foundation import plugins
from thunder_core.foundation.errors import ArtifactError, ArtifactForeign, BadModelFolder, PackageMissing, WrongInputs
from thunder_core.foundation.tested_versions import require_tested_torch
from thunder_core.workflow.artifact.format.code import fingerprint_of, verify_code
from thunder_core.workflow.artifact.format.compatibility import require_compatible
from thunder_core.workflow.artifact.format.manifest import CONFIG, GENERATION, WEIGHTS, CompilerFacts, EmptyModelFacts
from thunder_core.workflow.artifact.format.ranks import is_parallel, require_groups
from thunder_core.workflow.artifact.format.read import Artifact, open_artifact
from thunder_core.workflow.artifact.format.signature import require_authentic
from thunder_core.workflow.artifact.format.stored import stored_programs
from thunder_core.workflow.artifact.format.weights import (
    adopt_weights,
    has_no_data,
    put_weights,
    read_weights,
)
from thunder_core.workflow.artifact.retracing import RefusingCompiler, Retracer, functions_before_call, recipe_methods
from thunder_core.workflow.artifact.standalone.lazy_model import (
    ArtifactInMemory,
    LazyModel,
    LazyWeights,
    lazy_module,
    unbuilt_programs,
)
from thunder_core.workflow.artifact.standalone.standalone import standalone_here
from thunder_core.workflow.artifact.trust.consent import Consent
from thunder_core.workflow.artifact.trust.trust import Trust, trust_in
from thunder_core.workflow.models.loading.fingerprint import weights_of

# Imported when needed: building a model imports transformers, which takes seconds.
REBUILD = "thunder_core.workflow.models.loading.load:rebuild_model"
BUILD_EMPTY_MODEL = "thunder_core.workflow.models.loading.empty_model:build_empty_model"
PREPARE_WITH = "thunder_core.workflow.artifact.format.parts:prepare_with"


def load(
    folder: str | Path,
    model: Callable[..., Any] | None = None,
    *,
    strict: bool = False,
    weights: bool = False,
    trust_remote_code: bool = False,
    trusted_modules: Iterable[str] = (),
    trusted_keys: Iterable[str | PathLike[str]] | None = None,
    require_signature: bool = False,
) -> Any:
    """Load the artifact that `save` or `thunder optimize` wrote, and return a compiled module or function.

    The result is bound to `model`: a compiled module has the class of `model` and shares all its state. Without
    `model`, the model is rebuilt: from the artifact alone if it includes the weights, else from the model's original
    source. A `model` that is passed keeps its own weights. If some of its weights are on the meta device, or if
    `weights` is set, all weights are loaded from the artifact.

    Loading traces nothing and runs no program. The programs and kernels of the artifact are code, and run when the
    returned object is called. Inputs that no stored program accepts are traced by the artifact's recipe; if `strict` is
    set, they raise `WrongInputs`, which names a failed guard of each program. If no backward was saved for the
    requested gradients, PyTorch's autograd runs the program again and records it; if `strict` is set, the backward
    raises `NotDifferentiable`.

    Loading imports modules only from PyTorch, transformers and similar libraries, from the packages of the model's own
    classes, and from `trusted_modules`; other modules raise `ImportRefused`. A model that comes with its own Python
    code is rebuilt only with `trust_remote_code`; otherwise `RemoteCodeRefused` is raised.

    An invalid signature raises `BadSignature`. `trusted_keys` are the trusted public keys, as files or lines; the
    default is the user's list. If there are trusted keys and none of them signed the artifact, `load` warns with
    `UnsignedWarning`, or raises `NotSigned` if `require_signature` is set.

    Raises `NotAnArtifact`, `ArtifactTooNew`, `ArtifactTooOld`, `ArtifactDamaged` if any byte of the artifact has
    changed, `ArtifactForeign` for a model with another structure or code, another minor version of PyTorch, or a
    device, processor or instruction set that this machine lacks, and `TorchNotTested` for a release of PyTorch that
    Thunder has not been tested with.
    """
    require_tested_torch()
    consent = Consent(trust_remote_code, trusted_modules, trusted_keys, require_signature)
    reads_weights = weights or model is None or is_empty(model)
    artifact = open_artifact(Path(folder), later=frozenset({WEIGHTS}) if reads_weights else frozenset())
    require_authentic(artifact, consent)
    if model is None and (placeholder := placeholder_model(artifact, consent, strict=strict)) is not None:
        return placeholder
    return load_opened(artifact, model, consent, strict=strict, weights=weights)


def is_empty(model: Callable[..., Any]) -> bool:
    """Whether a model has a parameter or buffer on the meta device, and therefore without data."""
    return isinstance(model, torch.nn.Module) and has_no_data(tensor for _, tensor in weights_of(model))


def load_opened(
    artifact: Artifact,
    model: Callable[..., Any] | None,
    consent: Consent,
    *,
    strict: bool = False,
    weights: bool = False,
) -> Any:
    """Load an artifact whose files and signatures have been verified; `load` explains the parameters."""
    require_compatible(artifact.manifest)
    require_groups(artifact.manifest)
    reads_weights = weights or (model is not None and is_empty(model))
    if model is None:
        model = rebuilt_model(artifact, trust_remote_code=consent.trust_remote_code)
    elif isinstance(model, torch.nn.Module) and is_unprepared(artifact, model):
        model = prepare(artifact, model, has_values=not reads_weights)
    trust = verify_model(artifact, model, consent)
    define_operations(artifact, trust)
    if reads_weights:
        put_weights(artifact.manifest, read_weights(artifact), cast(torch.nn.Module, model))
    return bind_programs(artifact, model, trust, strict=strict)


def placeholder_model(artifact: Artifact, consent: Consent, *, strict: bool) -> torch.nn.Module | None:
    """Return a module that builds the model when it is needed; None if no program can run before the model is built."""
    require_compatible(artifact.manifest)
    trust = trust_in(None, consent.trusted_modules)
    standalone, facts = standalone_here(artifact, trust), artifact.manifest.empty_model
    if not standalone or facts is None:
        return None
    define_operations(artifact, trust)
    artifact_in_memory = ArtifactInMemory.of(artifact)
    are_parameters = {name: kind for separated in standalone.values() for name, kind in separated.weights.items()}
    packages = frozenset().union(*(separated.packages for separated in standalone.values()))
    programs = unbuilt_programs(artifact_in_memory, standalone, trust, strict=strict)

    def build(weights: LazyWeights) -> torch.nn.Module:
        model = empty_model_of(artifact_in_memory, facts, trust_remote_code=consent.trust_remote_code)
        adopt_weights(artifact_in_memory.manifest, weights.tensors, weights.values, model)
        model = on_device_of_weights(artifact_in_memory, model)
        compiled: torch.nn.Module = bind_programs(
            artifact_in_memory, model, verify_model(artifact_in_memory, model, consent), strict=strict
        )
        return compiled

    order = ArgumentOrder(artifact.manifest.keyword_order, artifact.manifest.positional)
    lazy = LazyModel(LazyWeights.of(artifact, are_parameters), packages, programs, build, order)
    return lazy_module(lazy, artifact.manifest.subject)


def is_unprepared(artifact: Artifact, model: torch.nn.Module) -> bool:
    """Whether the artifact's transforms still have to prepare a model: its structure differs, or it is not parallel."""
    differs = fingerprint_of(model) != artifact.manifest.fingerprint
    return differs or (artifact.manifest.group is not None and not is_parallel(model))


def define_operations(artifact: Artifact, trust: Trust) -> None:
    """Import the modules that define the operations of an artifact's transforms; raise `ImportRefused`."""
    for transform in artifact.manifest.compiler.transforms:
        for module in transform.operations:
            trust.import_object(f"{module}:")


def prepare(artifact: Artifact, model: torch.nn.Module, *, has_values: bool) -> torch.nn.Module:
    """Prepare a model as it was prepared before tracing: the artifact's transforms quantize its weights, for example.

    If `has_values` is False, the weights of the returned model have no values; the caller loads the artifact's weights.
    """
    facts = artifact.manifest.compiler
    if not facts.prepares:
        return model
    prepare_with: Any = plugins.import_object(PREPARE_WITH)
    result: torch.nn.Module = prepare_with(facts, model, trust_in(model, ()), has_values=has_values)
    return result


def verify_model(artifact: Artifact, model: Callable[..., Any], consent: Consent) -> Trust:
    """Return the modules that may be imported for a model; raise `ArtifactForeign` if its structure or code differs."""
    if fingerprint_of(model) != artifact.manifest.fingerprint:
        raise ArtifactForeign(
            f"{artifact.folder} was made for another model than this {type(model).__name__}: names, shapes, dtypes, "
            f"classes or config differ from those of its {artifact.manifest.subject}",
            fix="load the artifact with the model that it was made from, in the same dtype",
        )
    trust = trust_in(model, consent.trusted_modules)
    verify_code(artifact.manifest.code, subject=artifact.manifest.subject, trust=trust)
    return trust


def bind_programs(artifact: Artifact, subject: Callable[..., Any], trust: Trust, *, strict: bool) -> Any:
    """Return an artifact's programs as a compiled function or module."""
    programs = stored_programs(artifact, subject, trust=trust, strict=strict)
    facts = artifact.manifest.compiler
    compiler: ProgramCompiler = _refusing_compiler(artifact, programs, trust) if strict else Retracer(facts, trust)
    options = facts.options
    call = Specializations(
        subject,
        compiler,
        options,
        programs=RecentPrograms((program, None) for program in programs),
        argument_order=ArgumentOrder(artifact.manifest.keyword_order, artifact.manifest.positional),
    )
    for program in reversed(programs):  # `programs` begins with the program that was traced last
        call.observed.note(program)
    if not isinstance(subject, torch.nn.Module):
        return compiled_function(call)
    forward: ProgramCompiler = _refusing_compiler(artifact, (), trust) if strict else compiler
    rebinding = Rebinding(artifact.folder, artifact.manifest.digest, facts, trust, strict)
    methods, before_call = recipe_methods(facts, subject, trust), functions_before_call(facts, subject, trust)
    of_forward = Specializations(subject.forward, forward, options)
    return compiled_module(call, of_forward, rebinding, methods, before_call=before_call)


@dataclass(frozen=True)
class Rebinding:
    """Compiles a copy of a loaded module, or a module from a pickle, with the programs of the same artifact.

    If the artifact has been moved or replaced, the module is compiled by the artifact's recipe when it is called, or
    refused if `strict` is set.
    """

    folder: Path
    digest: str
    facts: CompilerFacts
    trust: Trust
    strict: bool

    def __call__(self, module: torch.nn.Module) -> torch.nn.Module:
        """Return the compiled module; raise the errors of `load` if `strict` is set."""
        try:
            compiled: torch.nn.Module = bind_programs(self._artifact(), module, self.trust, strict=self.strict)
        except ArtifactError:
            if self.strict:
                raise
            return self._compiled_by_recipe(module)
        return compiled

    def _artifact(self) -> Artifact:
        artifact = open_artifact(self.folder)
        if artifact.manifest.digest != self.digest:
            raise ArtifactForeign(
                f"the artifact in {self.folder} has been replaced since the module was loaded from it",
                fix="load the module again from the new artifact",
            )
        return artifact

    def _compiled_by_recipe(self, module: torch.nn.Module) -> torch.nn.Module:
        compiler, options = Retracer(self.facts, self.trust), self.facts.options
        forward = Specializations(module.forward, compiler, options)
        methods = recipe_methods(self.facts, module, self.trust)
        before_call = functions_before_call(self.facts, module, self.trust)
        call = Specializations(module, compiler, options)
        return compiled_module(call, forward, self, methods, before_call=before_call)


def _refusing_compiler(artifact: Artifact, programs: Iterable[Program], trust: Trust) -> RefusingCompiler:
    """Return a compiler that refuses all calls that no program of an artifact accepts."""
    manifest = artifact.manifest
    lengths = None if manifest.generation is None else manifest.generation.lengths
    return RefusingCompiler(artifact.folder, tuple(programs), manifest.compiler, trust, manifest.dynamic, lengths)


def rebuilt_model(artifact: Artifact, device: str | None = None, *, trust_remote_code: bool = False) -> torch.nn.Module:
    """Build the model that an artifact was made from, on its original device or on `device`.

    The weights come from the artifact if it includes them, else from the model's source. The model is in train mode if
    the artifact is for training. Raises `RemoteCodeRefused` if the model has its own code and that code is not trusted.
    """
    if artifact.manifest.empty_model is None:
        return load_weights(artifact, model_from_source(artifact, device, trust_remote_code=trust_remote_code))
    model = load_weights(
        artifact, empty_model_of(artifact, artifact.manifest.empty_model, trust_remote_code=trust_remote_code)
    )
    return on_device_of_weights(artifact, model) if device is None else torch.nn.Module.to(model, device)


def on_device_of_weights(artifact: Artifact, model: torch.nn.Module) -> torch.nn.Module:
    """Move a model to the device of the artifact's weights."""
    return torch.nn.Module.to(model, next(iter(artifact.manifest.weights.values())).device)


def empty_model_of(artifact: Artifact, facts: EmptyModelFacts, *, trust_remote_code: bool) -> torch.nn.Module:
    """Build the model without weights, from its class and the config in the artifact."""
    trust_in(None).require(facts.path)
    build = import_builder(artifact, BUILD_EMPTY_MODEL)
    texts = {name: artifact.text(name) if name in artifact.manifest.files else "" for name in (CONFIG, GENERATION)}
    file = artifact.folder / CONFIG
    arguments = {"trust_remote_code": trust_remote_code, **facts.model_dump()}
    try:
        model: torch.nn.Module = build(config=texts[CONFIG], file=file, generation=texts[GENERATION], **arguments)
    except (ImportError, AttributeError, TypeError, ValueError, LookupError, RuntimeError, BadModelFolder) as error:
        raise ArtifactForeign(
            f"the class of the artifact's model, {facts.path}, has changed: {error}",
            fix="install the version of transformers that the artifact was made with, or make the artifact again",
        ) from error
    return prepare(artifact, model, has_values=False)


def import_builder(artifact: Artifact, path: str) -> Any:
    """Return a function that builds models; raise `PackageMissing` if the library of the model is not installed."""
    try:
        return plugins.import_object(path)
    except ModuleNotFoundError as error:
        raise PackageMissing(
            f"{artifact.folder} cannot build its {artifact.manifest.subject} without {error.name}: {error}",
            fix=f"pip install {error.name}; or make the artifact with `thunder optimize --include-weights --outputs "
            "dict`, which runs without it",
        ) from error


def model_from_source(artifact: Artifact, device: str | None, *, trust_remote_code: bool) -> torch.nn.Module:
    """Load the model from its original source; raise `WrongInputs` if the artifact does not record the source."""
    if not artifact.manifest.source:
        raise WrongInputs(
            f"{artifact.folder} does not record where its {artifact.manifest.subject} comes from",
            fix="pass the model: thunder_core.load(folder, model)"
            + (", with weights=True to load the artifact's weights" if artifact.manifest.weights else ""),
        )
    rebuild = import_builder(artifact, REBUILD)
    options = {"device": device, "train": artifact.manifest.train, "trust_remote_code": trust_remote_code}
    model: torch.nn.Module = rebuild(artifact.manifest.source, **options).model
    return prepare(artifact, model, has_values=not artifact.manifest.weights)


def load_weights(artifact: Artifact, model: torch.nn.Module) -> torch.nn.Module:
    """Load the weights of an artifact, if it includes any, into a model; return the model."""
    if artifact.manifest.weights:
        put_weights(artifact.manifest, read_weights(artifact), model)
    return model
