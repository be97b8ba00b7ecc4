"""A session: a loaded model that is compiled and called, for optimize, bench, validate, debug and inspect-trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch

from thunder_core.backend.runtime.program import Program
from thunder_core.compilation.compiler import specializations_of
from thunder_core.foundation.errors import UsageError
from thunder_core.passes.recipe import Tolerance
from thunder_core.tracing.extension.leaving_out import require_modules
from thunder_core.tracing.extension.transform import prepare_model
from thunder_core.workflow.artifact.format.manifest import EXAMPLE
from thunder_core.workflow.artifact.format.read import Artifact
from thunder_core.workflow.artifact.format.tensors import read_tensors
from thunder_core.workflow.artifact.loading import load_opened
from thunder_core.workflow.artifact.trust.consent import Consent
from thunder_core.workflow.benchmark.report import size_in_words
from thunder_core.workflow.models.inputs.dataset import Dataset
from thunder_core.workflow.models.inputs.input_names import IDS
from thunder_core.workflow.models.inputs.inputs import Inputs
from thunder_core.workflow.models.inputs.size_words import size_configuration
from thunder_core.workflow.models.inputs.tokenizer_inputs import returned_names, tokenizer_inputs
from thunder_core.workflow.models.inputs.transformers_inputs import with_mask
from thunder_core.workflow.models.loading.described_model import describe_model
from thunder_core.workflow.models.loading.load import load_model, rebuild_model
from thunder_core.workflow.models.loading.loaded_model import LoadedModel
from thunder_core.workflow.models.request.input_size import InputSize
from thunder_core.workflow.models.request.mode import put_into_mode
from thunder_core.workflow.models.request.task import LANGUAGE_TASKS
from thunder_core.workflow.pipeline.request.artifact_tolerance import tolerance_of
from thunder_core.workflow.pipeline.request.purpose import Purpose
from thunder_core.workflow.pipeline.request.samples import USUAL_SEQUENCE
from thunder_core.workflow.pipeline.session.application import apply
from thunder_core.workflow.pipeline.session.estimate import require_memory
from thunder_core.workflow.pipeline.session.evaluate import evaluate, require_judgeable
from thunder_core.workflow.pipeline.session.model_errors import refuse_models_error
from thunder_core.workflow.pipeline.session.prepare import PreparedModel
from thunder_core.workflow.pipeline.session.progress import CHECK_RECIPE
from thunder_core.workflow.pipeline.session.rebuild import load_model_of
from thunder_core.workflow.validation import ValidationReport, validate
from thunder_core.workflow.validation.comparison import ValidationSettings
from thunder_core.workflow.validation.report import Evaluation

ONLY_TRACED = "the file of inputs has {}, which {} also traced: there were no other inputs to validate on"

Advance = Callable[[int, int], None]  # called with the number of completed steps and the number of all steps


@dataclass(frozen=True, eq=False)
class Session:
    """A loaded model, the function that compiles it, and the purpose of its calls.

    `names` are the names of the model and of the recipe, which distinguish measurements. `seed` is the default seed of
    random inputs. `tolerance(dtype)` returns the tolerance for outputs of a dtype. `ranges` are the ranges of sizes
    that the programs of an artifact support, by the names of dimensions. `traced_size` is the size with which its
    programs were traced, if the artifact records it. For an artifact of a prepared model, `load_original` loads the
    model without the changes by the recipe's transforms. `usual_sequence` is the default number of tokens in a text.
    """

    loaded: LoadedModel
    purpose: Purpose
    compile: Callable[[torch.nn.Module], torch.nn.Module]
    names: Mapping[str, str]
    seed: int
    tolerance: Callable[[torch.dtype], Tolerance]
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    traced_size: InputSize | None = None
    load_original: Callable[[], torch.nn.Module] | None = None
    usual_sequence: int = USUAL_SEQUENCE

    @property
    def model(self) -> torch.nn.Module:
        """The eager model that the compiled model is compared with: the model that the recipe's transforms prepared."""
        return self.loaded.model

    @property
    def has_original(self) -> bool:
        """Whether the recipe's transforms made another model from the original."""
        return self.loaded.original is not None or self.load_original is not None

    @cached_property
    def original(self) -> torch.nn.Module:
        """The eager model as it was loaded, for comparisons of speed; for training, the prepared model."""
        if self.purpose.train:
            return self.model
        if self.load_original is not None:
            return self.load_original()
        return self.model if self.loaded.original is None else self.loaded.original

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return self.loaded.model.device

    @property
    def rounding_dtype(self) -> torch.dtype:
        """The dtype to which the optimized model may round intermediate values: the dtype of the model."""
        return self.loaded.model.dtype

    @cached_property
    def compiled(self) -> torch.nn.Module:
        """The compiled model; it is compiled when this property is first read."""
        return self.compile(self.model)

    @property
    def optimized(self) -> Callable[..., Any]:
        """The function that is called, validated and measured: the compiled model; sessions of ranks override it."""
        return self.compiled

    @property
    def generator(self) -> torch.nn.Module:
        """The object whose `generate` is called, validated and measured; sessions of ranks override it."""
        return self.compiled

    def ready(self) -> AbstractContextManager[None]:
        """Return a context in which the model is in the mode for its calls; it restores buffers and gradients."""
        return self.purpose.ready(self.model)

    def call_of(self, function: Callable[..., Any]) -> Callable[..., object]:
        """Return the measured call of a function equivalent to the model: its forward, or a training step."""
        return self.purpose.call(function, self.model)

    def release(self) -> None:
        """Set the gradients to None to free their memory."""
        self.model.zero_grad(set_to_none=True)

    def call(self, inputs: Inputs) -> object:
        """Call the compiled model once, and return the output.

        If no program accepts the inputs, the call is traced; a strict artifact raises `WrongInputs`. Raises
        `ModelRaises` if the call raises the same error in eager PyTorch.
        """
        try:
            return self.call_of(self.optimized)(**inputs)
        except Exception as error:
            refuse_models_error(type(self.model).__name__, lambda: self.call_of(self.model)(**inputs), error)
            raise

    def inputs(self, size: InputSize, number: int = 0, seed: int | None = None) -> Inputs:
        """Return the inputs with this number; `optimize` traces number 0."""
        seed = self.seed if seed is None else seed
        return self.purpose.inputs(self.loaded, **size.stated, seed=seed, number=number)

    def variants(self, inputs: Inputs) -> Sequence[Inputs]:
        """Return the other forms of inputs: with an attention mask, and with the tokenizer's optional outputs.

        Real inputs have these outputs, so their other forms lack them. The model has defaults for the optional inputs.
        """
        if self.purpose.data is not None:
            return tuple(self.purpose.variants(inputs))
        masked = None if self.purpose.padded else with_mask(self.loaded, inputs)
        optional = None if self.purpose.train else tokenizer_inputs(self.loaded, masked or inputs, self.tokenizer_names)
        return tuple(variant for variant in (masked, optional) if variant is not None)

    @cached_property
    def tokenizer_names(self) -> tuple[str, ...]:
        """The names that the model's tokenizer returns and that the model accepts, in the tokenizer's order."""
        return returned_names(self.loaded)

    def serves(self, inputs: Inputs) -> bool:
        """Whether a traced program accepts these inputs."""
        specializations = specializations_of(self.compiled)
        with torch.set_grad_enabled(self.purpose.train):
            return any(_accepts(program, specializations.subject, inputs) for program in specializations.programs)

    def configuration(self, size: InputSize) -> dict[str, str]:
        """Return the facts that a measurement depends on; only measurements with equal facts are compared."""
        dtype = str(self.loaded.source["dtype"])
        sizes = {"batch": str(size.batch), **size_configuration(self.loaded.config, size)}
        return {**self.names, "dtype": dtype, **sizes, **self.purpose.configuration}

    def size_in_words(self, size: InputSize) -> str:
        """Return the size of an input as in tables: `4 x 320`."""
        return size_in_words(self.configuration(size))

    def require_memory_for(self, size: InputSize, *, runs: bool = True, validate: bool = False) -> None:
        """Raise `OutOfMemory` for inputs of a size that do not fit into this machine's memory.

        `runs` is False if the compiled model is not called, and `validate` is True if it is also compared with eager.
        """
        require_memory(self.loaded, self.purpose, **size.stated, seed=self.seed, runs=runs, validate=validate)

    def require_judgeable_samples(self, samples: Dataset, size: InputSize, metric: str | None) -> None:
        """Raise `BadData` for samples on which this model cannot be evaluated."""
        require_judgeable(self.loaded, samples, size.batch, size.seq, self.purpose, metric)

    def validation_report(
        self,
        size: InputSize,
        count: int,
        *,
        further_sizes: Sequence[InputSize] = (),
        traced: int = 1,
        seed: int | None = None,
        allow_non_finite: bool = False,
        advance: Advance,
        seconds: float | None = None,
    ) -> ValidationReport:
        """Compare with eager PyTorch on `count` inputs, and on one more of each size in `further_sizes`.

        If the inputs are real, the first `traced` batches were traced; they are omitted if there are other batches.
        `advance` reports the progress, and `seconds` limits the time as in `validate`. With `allow_non_finite`, outputs
        may be NaN or infinite where eager's outputs are.
        """
        numbers, traced_count = self.purpose.numbers_to_validate_on(
            self.loaded, batch=size.batch, seq=size.seq, requested=count, traced=traced
        )
        first, *rest = ((size, number) for number in numbers)
        numbered = [first, *((further_size, count + 1) for further_size in further_sizes), *rest]
        labelled = self._labelled_inputs(numbered, seed, with_variants=self.purpose.data is None or not further_sizes)
        report = validate(
            self.optimized,
            self.model,
            [inputs for inputs, _ in labelled],
            self.tolerance(self.loaded.model.dtype),
            ValidationSettings(
                language_model=self.loaded.task in LANGUAGE_TASKS,
                train=self.purpose.train,
                allow_non_finite=allow_non_finite,
                progress=advance,
                seed=self.seed if seed is None else seed,
                sizes=[label for _, label in labelled] if further_sizes else (),
                seconds=seconds,
            ),
        )
        if not traced_count:
            return report.model_copy(update={"untraced": self.purpose.data is None or traced > 0})
        counted = ("one batch", "was") if traced_count == 1 else (f"{traced_count} batches", "were")
        return report.model_copy(update={"notes": (ONLY_TRACED.format(*counted), *report.notes)})

    def _labelled_inputs(
        self, numbered: Sequence[tuple[InputSize, int]], seed: int | None, *, with_variants: bool
    ) -> list[tuple[Inputs, str]]:
        """Return the inputs of these sizes and numbers, then the variants of the first, each with its size in words."""
        labelled = [(self.inputs(size, number, seed), self.size_in_words(size)) for size, number in numbered]
        first, label = labelled[0]
        # Variants of real inputs are always compared. Variants of random inputs are compared if a program accepts them.
        is_real = self.purpose.data is not None
        variants = (
            [variant for variant in self.variants(first) if is_real or self.serves(variant)] if with_variants else []
        )
        return [*labelled, *((variant, label) for variant in variants)]

    def evaluation(self, samples: Dataset, size: InputSize, metric: str | None, *, advance: Advance) -> Evaluation:
        """Evaluate the metric on real samples for the eager model and for the compiled model."""
        cut = self.purpose.cut
        sizes = {"batch": size.batch, "seq": size.seq}
        return evaluate(self.optimized, self.loaded, samples, **sizes, cut=cut, metric=metric, advance=advance)


def _accepts(program: Program, subject: object, inputs: Inputs) -> bool:
    try:
        program.prepare(subject, (), dict(inputs))
    except Exception:  # guards, and paths that do not exist, may raise any error
        return False
    return True


def open_model(
    prepared: PreparedModel,
    purpose: Purpose,
    begin: Callable[[str], None] = lambda stage: None,
    prepare: Callable[[LoadedModel], torch.nn.Module] | None = None,
    *,
    loads_weights: bool = True,
) -> Session:
    """Open a session of a model that a recipe compiles; `begin` is called with the name of a stage that begins.

    With `loads_weights=False`, for requests that run nothing, the model's tensors are on the meta device. `prepare`, by
    default the recipe's transforms, prepares the model. Raises the errors of `load_model`, `RecipeMismatch`, the errors
    of transforms that cannot prepare the model, and `UnknownName` if `without` names a module that the model lacks.
    """
    loaded = load_model(prepared.model) if loads_weights else describe_model(prepared.loading, prepared.model)
    begin(CHECK_RECIPE)
    prepared.recipe.validate_all(loaded.model)
    require_modules(prepared.recipe.composition.without, loaded.model)
    put_into_mode(loaded.model, train=purpose.train)  # a transform may choose its layers by the mode
    model = prepare(loaded) if prepare else prepare_model(loaded.model, prepared.in_order)
    for each_model in (loaded.model, model):
        put_into_mode(each_model, train=False)
    return Session(
        loaded.with_prepared_model(model),
        purpose,
        partial(apply, prepared),
        {"model": prepared.model_name, "recipe": prepared.recipe.name},
        prepared.model.seed,
        prepared.recipe.loosest_tolerance,
        usual_sequence=prepared.usual_sequence,
    )


def open_saved(
    artifact: Artifact,
    purpose: Purpose,
    consent: Consent,
    *,
    device: str | None = None,
    strict: bool = False,
    tolerance: tuple[str, ...] = (),
) -> Session:
    """Open a session of an artifact, with its model and its stored programs, without compiling again.

    Raises the errors of `load`. If `strict` is set, calls that no program accepts raise `WrongInputs`. The bounds in
    `tolerance` replace the artifact's own.
    """
    manifest = artifact.manifest
    loaded = load_model_of(artifact, device, trust_remote_code=consent.trust_remote_code)
    compiled = load_opened(artifact, loaded.model, consent, strict=strict)
    model = str(manifest.source.get("name") or manifest.source.get("path") or manifest.recipe)
    return Session(
        loaded,
        purpose,
        lambda model: compiled,
        {"model": model, "recipe": manifest.recipe},
        0,
        partial(tolerance_of, artifact, bounds=tolerance),
        manifest.dynamic,
        traced_size(artifact),
        partial(original_of, artifact, str(loaded.model.device), consent) if manifest.compiler.prepares else None,
    )


def original_of(artifact: Artifact, device: str, consent: Consent) -> torch.nn.Module:
    """Load the model that an artifact was made from, without the changes by its recipe's transforms."""
    source = artifact.manifest.source
    try:
        return rebuild_model(source, device=device, trust_remote_code=consent.trust_remote_code).model
    except UsageError as error:
        error.fix = f"{error.fix}; or compare with the prepared model: --against prepared"
        raise


def traced_size(artifact: Artifact) -> InputSize | None:
    """Return the size of the random or example inputs that an artifact's programs were traced with; None if unknown.

    For examples without token ids, the sequence length is `USUAL_SEQUENCE`; models without tokens do not use it.
    """
    random_inputs = artifact.manifest.random_inputs
    if random_inputs:
        return InputSize(**{name: size for name, size in random_inputs.items() if name in InputSize._fields})
    if not artifact.manifest.example:
        return None
    example = read_tensors(artifact, EXAMPLE)
    if IDS in example:
        return InputSize(example[IDS].shape[0], example[IDS].shape[-1])
    return InputSize(max((tensor.shape[0] for tensor in example.values() if tensor.ndim), default=1), USUAL_SEQUENCE)
