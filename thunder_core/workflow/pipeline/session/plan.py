"""The plan that `thunder optimize` prints before it starts, as rows of text and as plain data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from thunder_core.backend.claiming.tuning import TuningBudget, tuning
from thunder_core.foundation.errors import OutOfMemory
from thunder_core.foundation.options.generation_lengths import GenerationLengths
from thunder_core.foundation.options.symbolic_arguments import ranges_in_words
from thunder_core.tracing.extension.requirement import by_reason
from thunder_core.workflow.benchmark.machine import threads_of
from thunder_core.workflow.benchmark.machine_load import MachineLoad
from thunder_core.workflow.benchmark.report import size_in_words
from thunder_core.workflow.models.folder.foreign_formats import has_weights
from thunder_core.workflow.models.folder.origin import FolderOrigin
from thunder_core.workflow.models.inputs.batches import longer_than
from thunder_core.workflow.models.inputs.dataset import Dataset
from thunder_core.workflow.models.inputs.size_words import omitted_inputs, size_configuration, sizes_in_words
from thunder_core.workflow.models.request.input_size import InputSize
from thunder_core.workflow.pipeline.request.first_rows import named_architecture
from thunder_core.workflow.pipeline.request.launch import Launch
from thunder_core.workflow.pipeline.request.narrow_dtypes import WIDENING, cost_of_narrow_dtype
from thunder_core.workflow.pipeline.request.purpose import Purpose
from thunder_core.workflow.pipeline.request.request import Request
from thunder_core.workflow.pipeline.request.request_checks import needs_no_weights
from thunder_core.workflow.pipeline.session.dynamic import points_of, upper_end
from thunder_core.workflow.pipeline.session.evaluate import metric_for
from thunder_core.workflow.pipeline.session.executor_comparison import comparing_executors
from thunder_core.workflow.pipeline.session.memory_plan import MemoryPlan, shortage_error
from thunder_core.workflow.pipeline.session.prepare import PreparedModel
from thunder_core.workflow.report.number_format import size as bytes_in_words

TRAINING_STEP = "training: forward, loss and backward, in train mode"
TARGET_DEVICE = "cuda"  # the device of a program for a target of cross-compilation


@dataclass(frozen=True)
class Plan:
    """The plan of a request: the prepared model and recipe, the inputs, the stages and the artifact's path.

    Some executors only compare the results of other executors. `prepared` leaves them out, and `comparing` is the
    preparation with them, or None if the recipe has none. `launch` is the launch of several ranks, or None.
    """

    request: Request
    prepared: PreparedModel
    size: InputSize
    data: Dataset | None
    evaluation_data: Dataset | None
    stages: tuple[str, ...]
    destination: Path
    generation: GenerationLengths | None = None
    comparing: PreparedModel | None = None
    calibration: Dataset | None = None
    memory: MemoryPlan | None = None
    load: MachineLoad | None = None
    launch: Launch | None = None

    @property
    def device(self) -> str:
        """The device on which the program will run."""
        return TARGET_DEVICE if self.request.target else str(self.prepared.loading.device)

    def rows(self) -> list[tuple[str, str]]:
        """Return the plan as pairs of a name and a text; a name may occur several times."""
        request, prepared, loading = self.request, self.prepared, self.prepared.loading
        name = prepared.model_name if prepared.model.sample is None else f"sample {prepared.model_name}"
        architecture = (loading.config.architectures or [type(loading.config).__name__])[0]
        return [
            ("model", named_architecture(name, architecture)),
            ("task", f"{loading.task}, {prepared.dtype_name}, on {self.device}"),
            (
                "recipe",
                " ".join([prepared.recipe.name, *(f"{key}={value}" for key, value in prepared.options.items())]),
            ),
            *(("note", note) for note in loading.notes),
            *(("choice", reason) for reason in prepared.choice),
            *([("purpose", TRAINING_STEP)] if request.train else []),
            *([("ranks", ranks)] if (ranks := self._ranks) else []),
            self._inputs,
            *([("dynamic", self._ranges)] if request.dynamic else []),
            *([("evaluation", self._evaluation)] if self.evaluation_data else []),
            ("transforms", ", ".join(map(transform_name, prepared.transforms)) or "none"),
            *([("lookasides", ", ".join(lookasides))] if (lookasides := lookaside_names(prepared)) else []),
            (
                "executors",
                ", ".join(candidate.name for candidate in prepared.executors if not candidate.reason) or "torch",
            ),
            *([("without", ", ".join(without))] if (without := prepared.recipe.composition.without) else []),
            *(("degraded", text) for text in degraded_parts(prepared)),
            *(("skipped", text) for text in skipped_executors(prepared)),
            *([("comparison", comparison_in_words(self.comparing))] if self.comparing else []),
            *self.load_rows(),
            ("stages", " > ".join(self.stages)),
            *unvalidated_rows(request),
            *([("lacking", f"weights: {self.reason_without_weights}")] if self.reason_without_weights else []),
            ("artifact", f"{self.destination}{', with the weights' if request.include_weights else ''}"),
            *self.memory_rows(),
        ]

    def memory_rows(self) -> Iterator[tuple[str, str]]:
        """Yield rows about memory: of the stages or of a target, the cost of a slow dtype, and a lack of memory."""
        if self.memory is None:
            return
        if self.request.target:
            weights = bytes_in_words(self.memory.new_weights or self.memory.weights)
            yield "memory", f"{weights} of weights on the target; not loaded on this machine"
            return
        yield from (("memory", row) for row in self.memory.rows())
        if cost := self._cost_of_dtype(self.memory.weights):
            yield "dtype", cost
        if (error := self.memory_error) is not None:
            yield "lacking", f"{error.code} {error.what} ({error.fix})"

    def _cost_of_dtype(self, weights: int) -> str:
        """Return the cost of the model's dtype for this many bytes of weights, in words; empty if it is fast."""
        prepared, request = self.prepared, self.request
        with tuning(request.tune):
            widened = not TuningBudget().is_off and any(
                candidate.name == WIDENING and candidate.reason is None for candidate in prepared.executors
            )
        device = prepared.loading.device
        return cost_of_narrow_dtype(prepared.dtype_name, device, weights, widened=widened, train=request.train)

    def load_rows(self) -> Iterator[tuple[str, str]]:
        """Yield a row for the load of other processes if they slow down the run and make the benchmark unstable."""
        threads = self.request.threads or threads_of(torch.device("cpu"))
        if self.load is not None and self.load.leaves_too_few_processors(threads):
            fewer = "" if threads == 1 else f", or use fewer than {threads} --threads"
            yield "busy", f"{self.load.used_by_others}: wait until the machine is quiet{fewer}"

    @property
    def memory_error(self) -> OutOfMemory | None:
        """The error for a plan that does not fit into memory; None if it fits, or loads nothing (for a target)."""
        if self.memory is None or self.memory.fits or self.request.target:
            return None
        return shortage_error(self.memory, self.prepared)

    @property
    def reason_without_weights(self) -> str:
        """The reason why the plan cannot run, if the model's folder lacks needed weights; otherwise empty."""
        origin, request = self.prepared.loading.origin, self.request
        is_built = self.prepared.model.random_weights or needs_no_weights(request, dry_run=False)
        if is_built or not isinstance(origin, FolderOrigin) or origin.hub is not None or has_weights(origin.folder):
            return ""
        return f"{origin.folder} has none, but a run needs weights (add weights, or use --random-weights)"

    @property
    def points(self) -> list[InputSize]:
        """The sizes for validation and measurement: the traced size and, for ranges, others."""
        return points_of(self.request.dynamic, self.size)

    @property
    def largest(self) -> InputSize:
        """The largest input that the artifact must accept."""
        return upper_end(self.request.dynamic, self.size)

    @property
    def purpose(self) -> Purpose:
        """The purpose of calls of the model, and its data."""
        padded = self.data is not None or self.prepared.pads_texts
        return Purpose(self.request.train, self.data, self.request.seq is not None, padded)

    @property
    def _inputs(self) -> tuple[str, str]:
        if self.generation is not None:
            return "generation", f"{self.generation}, {self._origin}"
        return "inputs", f"batch {self.size.batch}, {self._sizes}, {self._origin}{self._labelled}"

    @property
    def _sizes(self) -> str:
        config = self.prepared.loading.config
        padding = "" if self.purpose.padded else ", without padding"
        return f"{sizes_in_words(config, self.size)}{omitted_inputs(config)}{padding}"

    @property
    def _ranks(self) -> str:
        if self.launch is None or not self.prepared.parallel:
            return ""
        backend = "gloo" if self.prepared.loading.device.type == "cpu" else "NCCL"
        processes = f"{self.launch.size} process{'' if self.launch.size == 1 else 'es'}"
        axes = ", ".join(f"{name}={size}" for name, size in self.prepared.mesh.items())
        mesh = f" in a mesh ({axes})" if axes else ""
        called = "the same step" if self.request.train else "the same call"
        reference = "generation" if self.request.generates else called
        return f"{processes} with {backend}{mesh}, {self._inputs_of_ranks}; compared with {reference} in one process"

    @property
    def _inputs_of_ranks(self) -> str:
        ranks = 1 if self.launch is None else self.launch.size
        parts = self.prepared.parts_of_batch(ranks)
        if parts == 1:
            return "all with the same inputs"
        return (
            "each with inputs of its own" if parts == ranks else f"with {parts} inputs, each for {ranks // parts} ranks"
        )

    @property
    def _ranges(self) -> str:
        config = self.prepared.loading.config
        words = ({"batch": str(size.batch), **size_configuration(config, size)} for size in self.points)
        sizes = ", ".join(map(size_in_words, words))
        return f"{ranges_in_words(self.request.dynamic)}; validated and measured at {sizes}"

    @property
    def _origin(self) -> str:
        if self.data is None:
            return f"seed {self.prepared.model.seed}"
        cut = longer_than(self.data, self.size.seq)
        samples = f"{len(self.data)} sample{'' if len(self.data) == 1 else 's'}"
        return f"{samples} from {self.data.file.name}{f', {cut} truncated' if cut else ''}"

    @property
    def _evaluation(self) -> str:
        assert self.evaluation_data is not None
        loading = self.prepared.loading
        metric = self.request.metric or metric_for(loading.task, loading.config)
        return (
            f"{metric} before and after, on {len(self.evaluation_data)} samples from {self.evaluation_data.file.name}"
        )

    @property
    def _labelled(self) -> str:
        return ", with labels" if self.request.train else ""

    def as_data(self) -> dict[str, object]:
        """Return the plan as plain data."""
        request, prepared, loading = self.request, self.prepared, self.prepared.loading
        return {
            "model": prepared.model_name,
            "task": loading.task,
            "device": self.device,
            "target": request.target or None,
            "dtype": prepared.dtype_name,
            "recipe": prepared.recipe.name,
            "choice": list(prepared.choice),
            "options": dict(prepared.options),
            **(self.size.stated if self.generation is None else asdict(self.generation)),
            "dynamic": {name: list(ends) for name, ends in request.dynamic.items()},
            "seed": prepared.model.seed,
            "train": request.train,
            "ranks": 1 if self.launch is None else self.launch.size,
            "input": None if self.data is None else self.data.name,
            "evaluate": None if self.evaluation_data is None else self.evaluation_data.name,
            "transforms": [transform_name(transform) for transform in prepared.transforms],
            "lookasides": lookaside_names(prepared),
            "executors": [{"name": candidate.name, "reason": candidate.reason} for candidate in prepared.executors],
            "without": list(prepared.recipe.composition.without),
            "comparison": list(comparing_executors(self.comparing)) if self.comparing else [],
            "degraded": [part.model_dump() for part in prepared.degraded],
            "stages": list(self.stages),
            "include_weights": request.include_weights,
            "validation": "pending" if request.target else "on" if request.validate else "off",
            "artifact": str(self.destination),
            "memory": None if self.memory is None else self.memory.as_data(),
            "notes": list(loading.notes),
        }


def comparison_in_words(comparing: PreparedModel) -> str:
    """Return a sentence about the executors that compare the results of other executors."""
    names = ", ".join(comparing_executors(comparing))
    return f"{names} compares the other executors with eager PyTorch while they run; not part of the artifact"


def unvalidated_rows(request: Request) -> Iterator[tuple[str, str]]:
    """Yield the rows of a plan without validation."""
    if request.target:
        yield "target", f"{request.target}: kernels are compiled for this GPU; nothing runs on this machine"
        yield "validation", "pending: run `thunder validate` on the GPU; there is no benchmark before"
    elif not request.validate:
        yield "validation", "off: the report will say `not validated`"


def degraded_parts(prepared: PreparedModel) -> Iterator[str]:
    """Yield the parts of the recipe that this machine cannot run, each with the reason and the fix.

    Executors that are skipped for the same reason are named together with the part.
    """
    for degradation in by_reason(prepared.degraded):
        names = [candidate.name for candidate in prepared.executors if candidate.reason == degradation.reason]
        skipped = f", {'executor' if len(names) == 1 else 'executors'} {', '.join(names)}" if names else ""
        yield f"{degradation.part}{skipped}: {degradation.reason} ({degradation.fix})"


def skipped_executors(prepared: PreparedModel) -> Iterator[str]:
    """Yield the unavailable executors that `degraded_parts` does not name, grouped by their reason."""
    printed = {degradation.reason for degradation in prepared.degraded}
    names: dict[str, list[str]] = {}
    for executor in prepared.executors:
        if executor.reason and executor.reason not in printed:
            names.setdefault(executor.reason, []).append(executor.name)
    yield from (f"{', '.join(skipped)}: {reason}" for reason, skipped in names.items())


def lookaside_names(prepared: PreparedModel) -> list[str]:
    """Return the names of the functions whose calls the recipe's lookasides replace."""
    return [lookaside.name for lookaside in prepared.recipe.all_lookasides()]


def transform_name(transform: object) -> str:
    """Return a transform's class name, which is a verb phrase."""
    return type(transform).__name__
