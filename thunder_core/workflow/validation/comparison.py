"""Compare the optimized callable, eager PyTorch and the reference on the same inputs."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch

from thunder_core.foundation.errors import Bug, NotComparable, OtherRandomNumbers
from thunder_core.foundation.options.tolerance import Tolerance
from thunder_core.tracing.ir.proxy import dtype_name
from thunder_core.tracing.library.examination import validating
from thunder_core.workflow.models.memory.release_memory import trim_memory
from thunder_core.workflow.validation.budget import Budget
from thunder_core.workflow.validation.degenerate_outputs import (
    Finiteness,
    finiteness_notes,
    finiteness_of,
    require_conclusive,
)
from thunder_core.workflow.validation.distance import Distance, measure_distance
from thunder_core.workflow.validation.draws import DrawnValues, random_state, same_state
from thunder_core.workflow.validation.gradients import ObserveGradients, output, training_step, with_scale_of_step
from thunder_core.workflow.validation.language import LOGITS, has_logits, measure_language
from thunder_core.workflow.validation.layouts import check_layouts
from thunder_core.workflow.validation.leaves import Leaves, require_same_structure
from thunder_core.workflow.validation.model_copies import (
    ModelCopy,
    by_id,
    copy_before_call,
    copy_sharing,
)
from thunder_core.workflow.validation.precision import Reference, widest_affordable
from thunder_core.workflow.validation.preserved_state import (
    devices_of,
    preserve_buffers,
    preserve_random_state,
    require_unchanged_parameters,
)
from thunder_core.workflow.validation.report import AFTER_CALL, OutputReport, ValidationReport
from thunder_core.workflow.validation.state import ObservedCall, changed_elements, changed_paths, state_at, state_of
from thunder_core.workflow.validation.streamed_gradients import MeasuredGradient, StreamedGradients
from thunder_core.workflow.validation.verdict import Measurement, judge, judge_sizes, require_passed

RUNS_PER_INPUT = 3
NOT_COMPARED = "`{}`: only its type was compared, because the contents of class {} cannot be compared"
MISMATCH = "the layout of a tensor differs from the traced layout, so gradients may be wrong: {}"


def ignore_progress(done: int, total: int) -> None:
    """Ignore the progress."""


@dataclass(frozen=True)
class ValidationSettings:
    """The settings of a validation.

    - `language_model`: the logits are compared by the KL divergence and the top-1 agreement, too.
    - `train`: the gradients of the loss in the outputs are also compared, for each of the model's parameters.
    - `allow_non_finite`: outputs may be NaN, infinite or all zero; the report's notes say so.
    - `progress(done, total)` is called after each run.
    - `reference_dtype`: the dtype of the reference (default: float64, or float32 if float64 does not fit into memory).
    - `seed`: the seed of the generators before each run.
    - `sizes`: the sizes of the inputs in words, if there are several; each size is also reported separately.
    - `seconds` limits the time; the default limit depends on the time of eager PyTorch (`Budget`).
    """

    language_model: bool
    train: bool = False
    allow_non_finite: bool = False
    progress: Callable[[int, int], None] = ignore_progress
    reference_dtype: torch.dtype | None = None
    seed: int = 0
    sizes: Sequence[str] = ()
    seconds: float | None = None


def validate(
    optimized: Callable[..., object],
    model: torch.nn.Module,
    inputs: Sequence[Mapping[str, torch.Tensor]],
    tolerance: Tolerance,
    settings: ValidationSettings,
) -> ValidationReport:
    """Compare `optimized(**inputs)` with `model(**inputs)` on each of the inputs, and return the report.

    Both callables are compared with a reference: the same model in a wider dtype. The generators get the same seed
    before each run. Afterwards, the random state and the model's buffers are restored. If tensors of the optimized
    program have another layout than in the trace, the report's notes list them. The first input is always compared,
    and a note gives the number of inputs that were omitted because of the time limit.

    Raises NotFinite if eager or the reference has NaN or infinities, and AllZero if all of eager's outputs are zero,
    unless `settings.allow_non_finite` is set, which adds notes instead. Raises OutOfTolerance if an output is out of
    tolerance. These three errors have the report as their `report`. Raises NotComparable if the outputs differ in
    structure, shape or dtype, or if the model cannot be copied, OtherRandomNumbers if the optimized program consumes
    the RNG differently from eager, and NoLoss for a model that cannot be trained.
    """
    if not inputs:
        raise Bug("validation needs at least one input", fix="give at least one input")
    language_model, train = settings.language_model, settings.train
    reference = Reference(model, settings.reference_dtype or widest_affordable(model, train=train))
    comparison, budget = _Comparison(), Budget(len(inputs), settings.seconds)
    observe = partial(_side_by_side, optimized=optimized, model=model, reference=reference, budget=budget)
    measure = partial(_measure, language_model=language_model, train=train)
    with torch.no_grad(), preserve_random_state(model):
        runs = _runs(model, inputs, settings.seed, comparison.mismatches, settings.progress, train=train)
        done = comparison.compare(runs, observe, measure, budget)
    report = comparison.report(reference, done, tolerance, settings.sizes[:done], language_model=language_model)
    if not settings.allow_non_finite:
        require_conclusive(report, train=train)
    require_passed(report)
    return report


@dataclass(frozen=True)
class _Comparison:
    """The results of the runs so far: measurements by output and by the number of the input, and layout mismatches.

    `opaque` has the types of objects that have no readable attributes, by path. `left_out` has notes on the inputs
    that were omitted because of the time limit.
    """

    measured: dict[str, dict[int, Measurement]] = field(default_factory=dict)
    opaque: dict[str, str] = field(default_factory=dict)
    mismatches: dict[str, None] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def add(self, number: int, observed: _SideBySide, measurements: Iterable[tuple[str, Measurement]]) -> None:
        """Add the measurements of the input with a number, by the names of the outputs."""
        self.opaque.update(observed.eager.opaque)
        for name, measurement in measurements:
            self.measured.setdefault(name, {})[number] = measurement

    def compare(
        self,
        runs: Iterable[_Run],
        observe: Callable[[_Run], _SideBySide],
        measure: Callable[[_SideBySide], Iterable[tuple[str, Measurement]]],
        budget: Budget,
    ) -> int:
        """Add the measurements of the runs that the time limit allows, and return the number of these runs."""
        for done, run in enumerate(runs):
            if not budget.allows(done):
                self.left_out.append(budget.note(done))
                return done
            observed = observe(run)
            self.add(done, observed, measure(observed))
            del observed
            trim_memory()
        return budget.inputs

    def report(
        self, reference: Reference, inputs: int, tolerance: Tolerance, sizes: Sequence[str], *, language_model: bool
    ) -> ValidationReport:
        """Return the verdict on each output, with notes on parts that were not compared and on layout mismatches."""
        outputs = tuple(
            judge(name, [*measurements.values()], tolerance) for name, measurements in self.measured.items()
        )
        notes = (*finiteness_notes(outputs), *reference.notes, *_notes(outputs, language_model))
        opaque = itertools.starmap(NOT_COMPARED.format, self.opaque.items())
        return ValidationReport(
            passed=all(output.passed for output in outputs),
            inputs=inputs,
            reference_dtype=reference.name,
            by_layer=reference.by_layer,
            tolerance=tolerance,
            outputs=outputs,
            notes=(*self.left_out, *notes, *opaque, *map(MISMATCH.format, self.mismatches)),
            sizes=judge_sizes(sizes, self.measured, tolerance),
        )


def _runs(
    model: torch.nn.Module,
    inputs: Sequence[Mapping[str, torch.Tensor]],
    seed: int,
    mismatches: dict[str, None],
    progress: Callable[[int, int], None],
    *,
    train: bool,
) -> Iterator[_Run]:
    """Yield one run for each input, each with its own seed; `mismatches` collects bound symbols with another layout."""
    ticks, observe = itertools.count(1), training_step if train else output
    tick = partial(_report_progress, progress, ticks, RUNS_PER_INPUT * len(inputs))
    for number, call_inputs in enumerate(inputs):
        yield _Run(call_inputs, seed + number, devices_of(model), observe, tick, mismatches)


def _report_progress(progress: Callable[[int, int], None], ticks: Iterator[int], total: int) -> None:
    progress(next(ticks), total)


def _identity(value: object) -> object:
    return value


@dataclass(frozen=True)
class _Run:
    """One input, which is passed to several callables in the same random state.

    `mismatches` collects the tensors of the optimized program whose layout differs from the traced layout.
    """

    inputs: Mapping[str, object]
    seed: int
    devices: Sequence[torch.device]
    observe: ObserveGradients
    tick: Callable[[], None]
    mismatches: dict[str, None]

    def __call__(
        self, function: Callable[..., object], model: torch.nn.Module, convert: Callable[[object], object] = _identity
    ) -> ObservedCall:
        """Call the function, which uses the model's parameters.

        Return the compared values and the state after the call. `convert` is applied to each input.
        """
        self.begin()
        converted = {name: convert(_copy_value(value)) for name, value in self.inputs.items()}
        leaves = self.observe(function, model, converted)
        self.tick()
        return ObservedCall(leaves, state_of(model, converted))

    def record(
        self,
        function: Callable[..., object],
        model: torch.nn.Module,
        convert: Callable[[object], object] = _identity,
        *,
        recorded: DrawnValues | None = None,
    ) -> tuple[ObservedCall, DrawnValues]:
        """Call the function, and also return its random numbers; if `recorded` is passed, those numbers are used."""
        draws = DrawnValues(self.devices)
        with draws.record(recorded):
            return self(function, model, convert), draws

    def begin(self) -> None:
        """Seed all generators."""
        torch.manual_seed(self.seed)
        random.seed(self.seed)
        np.random.seed(self.seed)


def _copy_value(value: object) -> object:
    return value.clone() if isinstance(value, torch.Tensor) else copy.deepcopy(value)


@dataclass(frozen=True)
class _SideBySide:
    """The outputs and changed state of all three callables for one input, and the state before the call.

    `measured` are the gradients that were compared with the reference's while they were computed.
    """

    mine: Leaves
    eager: Leaves
    precise: Leaves
    before: Mapping[str, torch.Tensor]
    measured: Mapping[str, MeasuredGradient]

    def finiteness(self, name: str) -> Finiteness:
        """Return the finiteness of eager's tensor; for state, only of the elements that the call changed.

        All-zero state is not reported, because the call has changed it.
        """
        if name in self.measured:
            return self.measured[name].finiteness
        eager, precise = self.eager.tensors[name], self.precise.tensors[name]
        if not name.endswith(AFTER_CALL):
            return finiteness_of(eager, precise)
        changed = changed_elements(self.before.get(name), eager)
        return replace(finiteness_of(eager[changed], precise[changed]), all_zero=False)

    def distance(self, name: str) -> Distance:
        """Return the distances of the optimized tensor and of eager's tensor from the reference."""
        if name in self.measured:
            return self.measured[name].distance
        return measure_distance(*self.triple(name))

    def triple(self, name: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the optimized tensor, eager's tensor and the reference's tensor."""
        eager = self.eager.tensors[name]
        return self.mine.tensors[name], eager, _reference_value(name, eager, self.precise)


def _side_by_side(
    run: _Run, optimized: Callable[..., object], model: torch.nn.Module, reference: Reference, budget: Budget
) -> _SideBySide:
    """Run eager, the optimized callable and the reference from the same state. Eager runs first, on a copy."""
    with require_unchanged_parameters(model), budget.timing_eager():
        called = copy_sharing(model, by_id(model.parameters()))
        eager, draws = run.record(called.model, called.model)
    start = copy_before_call(model, called)
    before, own = state_of(start.model, run.inputs), state_of(model, run.inputs)
    generators = random_state(run.devices)
    with preserve_buffers(model, start.buffers), check_layouts() as watch, validating():
        mine = run(optimized, model)
        # Eager ran on a copy, which may differ in structure from the model: each structure is compared with its own.
        paths = changed_paths(before, eager.state) | changed_paths(replace(own, tensors=before.tensors), mine.state)
        mine = mine.copy_at(paths, model.buffers()).with_state_at(paths)
    run.mismatches.update(dict.fromkeys(map(str, watch.mismatches)))
    eager = eager.with_state_at(paths)
    require_same_structure(mine.leaves, eager.leaves)
    if not same_state(generators, random_state(run.devices)):
        raise OtherRandomNumbers(
            "the optimized model draws other random numbers than eager PyTorch from the same seed",
            fix="leave out the executor or transform that uses its own random numbers, or set the model's dropout to 0",
        )
    precise, measured = _precise(run, reference, start, draws, StreamedGradients(mine.leaves, eager.leaves))
    trim_memory()
    precise = precise.with_state_at(paths)
    return _SideBySide(mine.leaves, eager.leaves, precise.leaves, state_at(paths, before).tensors, measured)


def _precise(
    run: _Run, reference: Reference, start: ModelCopy, draws: DrawnValues, gradients: StreamedGradients
) -> tuple[ObservedCall, Mapping[str, MeasuredGradient]]:
    """Run the reference; also return the measurements of gradients that were compared while it computed them."""
    if run.observe is training_step and reference.by_layer:
        precise = reference.observe(
            partial(replace(run, observe=gradients.observe).record, recorded=draws), start, draws
        )
        if not gradients.came_in_parts:
            return precise, gradients.measured
    return reference.observe(partial(run.record, recorded=draws), start, draws), {}


def _measure(observed: _SideBySide, *, language_model: bool, train: bool) -> Iterator[tuple[str, Measurement]]:
    """Yield the measurement of each output of one input, and of each tensor that the call changed."""
    eager = observed.eager
    if not eager.tensors:
        raise NotComparable("the model's output contains no tensor", fix="validate a model that returns tensors")
    distances = {name: observed.distance(name) for name in eager.tensors}
    for name, distance in (with_scale_of_step(distances) if train else distances).items():
        eager_value = eager.tensors[name]
        is_language = language_model and has_logits(name, eager_value)
        language = measure_language(*observed.triple(name)) if is_language else None
        finiteness = observed.finiteness(name)
        yield name, Measurement(dtype_name(eager_value.dtype), tuple(eager_value.shape), distance, language, finiteness)


def _reference_value(name: str, eager: torch.Tensor, precise: Leaves) -> torch.Tensor:
    tensor = precise.tensors.get(name)
    if tensor is None or tensor.shape != eager.shape:
        shape = "missing" if tensor is None else f"of shape {list(tensor.shape)}"
        raise NotComparable(
            f"`{name}` is {shape} in the reference run, but of shape {list(eager.shape)} in eager",
            fix="the shapes of the model's outputs depend on its precision, so the model cannot be validated",
        )
    return tensor


def _notes(outputs: Sequence[OutputReport], language_model: bool) -> Iterator[str]:
    if not language_model or any(output.language for output in outputs):
        return
    has_some = any(output.name == LOGITS for output in outputs)
    reason = f"no position of `{LOGITS}` is a valid distribution" if has_some else f"no output is named `{LOGITS}`"
    yield f"{reason}, so KL divergence and top-1 agreement were not measured"
