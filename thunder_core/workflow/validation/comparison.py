"""Validation: the optimized callable, eager PyTorch and the reference, side by side on the same inputs."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from thunder_core.backend.runtime.layouts import layouts_watched
from thunder_core.foundation.errors import Bug, NotComparable, OtherRandomNumbers
from thunder_core.foundation.options.tolerance import Tolerance
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
from thunder_core.workflow.validation.gradients import Observe, among_all, output, training_step
from thunder_core.workflow.validation.language import LOGITS, has_logits, measure_language
from thunder_core.workflow.validation.leaves import Leaves, dtype_name, require_same_structure
from thunder_core.workflow.validation.precision import Reference, copy_sharing_parameters, widest_affordable
from thunder_core.workflow.validation.report import AFTER_CALL, OutputReport, ValidationReport
from thunder_core.workflow.validation.state import Observed, changed_elements, changed_paths, state_at, state_of
from thunder_core.workflow.validation.streamed_gradients import MeasuredGradient, StreamedGradients
from thunder_core.workflow.validation.verdict import Measurement, judge, judge_points, require_passed
from thunder_core.workflow.validation.wide_weights import constant_buffers

RUNS_PER_INPUT = 3
NOT_COMPARED = "`{}`: only its type was compared, because the contents of a {} cannot be compared"
MISMATCH = "the layout of a tensor differs from the traced one, so gradients may be wrong: {}"


def say_nothing(done: int, total: int) -> None:
    """A progress callback for those who do not watch."""


def validate(
    optimized: Callable[..., object],
    model: torch.nn.Module,
    inputs: Sequence[Mapping[str, torch.Tensor]],
    tolerance: Tolerance,
    *,
    language_model: bool,
    train: bool = False,
    allow_non_finite: bool = False,
    progress: Callable[[int, int], None] = say_nothing,
    reference_dtype: torch.dtype | None = None,
    seed: int = 0,
    sizes: Sequence[str] = (),
    seconds: float | None = None,
) -> ValidationReport:
    """Compare `optimized(**inputs)` with `model(**inputs)` on each of the inputs.

    With `train`, also the gradients of the loss that is among their outputs, one for each of the model's parameters.

    Both are held against a reference: the same model in `reference_dtype` (default: float64, or float32 where that
    does not fit into memory). The random state is seeded alike before each run, and is put back afterwards; so are
    the model's buffers. `progress(done, total)` is called after each run. Where tensors of the optimized one are not
    laid out as their bound symbols were derived, the report's notes name these. `sizes` are those of the inputs in
    words, where these are of several, each of which is then reported by itself. The time is bounded by `seconds`, or by
    that of eager PyTorch (`Budget`): the first input is compared in any case, and how many are left out is noted.

    Raises NotFinite where eager or the reference holds NaN or infinities, and AllZero where eager holds nothing but
    zeros (unless `allow_non_finite`, when the notes say so), OutOfTolerance if an output is out of tolerance; all three
    hold the report as their `report`. Raises NotComparable if the outputs differ in structure, shape or dtype, or the
    model cannot be copied, OtherRandomNumbers if the optimized one draws others than eager, and NoLoss for a model that
    cannot be trained.
    """
    if not inputs:
        raise Bug("validation needs at least one input", fix="give at least one input")
    reference = Reference(model, reference_dtype or widest_affordable(model, train=train))
    comparison, budget, done = _Comparison(), Budget(len(inputs), seconds), 0
    with torch.no_grad(), _random_state_kept(model):
        for run in _runs(model, inputs, seed, comparison.mismatches, progress, train=train):
            if not budget.allows(done):
                comparison.left_out.append(budget.note(done))
                break
            observed = _side_by_side(run, optimized, model, reference, budget)
            comparison.add(observed, _measure(observed, language_model=language_model, train=train))
            done += 1
            del observed
            trim_memory()
    report = comparison.report(reference, done, tolerance, sizes[:done], language_model=language_model)
    if not allow_non_finite:
        require_conclusive(report, train=train)
    require_passed(report)
    return report


@dataclass(frozen=True)
class _Comparison:
    """The results of the runs so far: measurements by outputs, what is `opaque`, and layouts that are `mismatches`.

    `left_out` says how many inputs there was no time for.
    """

    measured: dict[str, list[Measurement]] = field(default_factory=dict)
    opaque: dict[str, str] = field(default_factory=dict)
    mismatches: dict[str, None] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def add(self, observed: _SideBySide, measurements: Iterable[tuple[str, Measurement]]) -> None:
        """Add one input's measurements, by the names of outputs."""
        self.opaque.update(observed.eager.opaque)
        for name, measurement in measurements:
            self.measured.setdefault(name, []).append(measurement)

    def report(
        self, reference: Reference, inputs: int, tolerance: Tolerance, sizes: Sequence[str], *, language_model: bool
    ) -> ValidationReport:
        """The verdict on each output, with notes on what was not compared and what is laid out otherwise."""
        outputs = tuple(judge(name, measurements, tolerance) for name, measurements in self.measured.items())
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
            points=judge_points(sizes, self.measured, tolerance),
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
    """The runs to compare: one for each input, with a seed of its own; bound symbols at fault go to `mismatches`."""
    ticks, observe = itertools.count(1), training_step if train else output
    tick = partial(_tell, progress, ticks, RUNS_PER_INPUT * len(inputs))
    for number, given in enumerate(inputs):
        yield _Run(given, seed + number, devices_of(model), observe, tick, mismatches)


def _tell(progress: Callable[[int, int], None], ticks: Iterator[int], total: int) -> None:
    progress(next(ticks), total)


def devices_of(model: torch.nn.Module) -> tuple[torch.device, ...]:
    """The GPUs that a model is on."""
    return tuple({tensor.device for tensor in model.parameters() if tensor.is_cuda})


def _unchanged(value: object) -> object:
    return value


@dataclass(frozen=True)
class _Run:
    """One input, given to one callable after another in the same random state.

    `mismatches` tells of tensors of the optimized one that are not what their bound symbols were derived with.
    """

    inputs: Mapping[str, object]
    seed: int
    devices: Sequence[torch.device]
    observe: Observe
    tick: Callable[[], None]
    mismatches: dict[str, None]

    def __call__(
        self, function: Callable[..., object], model: torch.nn.Module, convert: Callable[[object], object] = _unchanged
    ) -> Observed:
        """The values that are compared of a call of the function, which computes with the model's parameters.

        With them the state that the call leaves behind. `convert` is done to each of its inputs.
        """
        self.begin()
        given = {name: convert(_own(value)) for name, value in self.inputs.items()}
        leaves = self.observe(function, model, given)
        self.tick()
        return Observed(leaves, state_of(model, given))

    def noting(
        self,
        function: Callable[..., object],
        model: torch.nn.Module,
        convert: Callable[[object], object] = _unchanged,
        *,
        given: DrawnValues | None = None,
    ) -> tuple[Observed, DrawnValues]:
        """The observed function, which also notes the random numbers that it draws or is given."""
        draws = DrawnValues(self.devices)
        with draws.note(given):
            return self(function, model, convert), draws

    def begin(self) -> None:
        """Seed all generators."""
        torch.manual_seed(self.seed)
        random.seed(self.seed)


def _own(value: object) -> object:
    return value.clone() if isinstance(value, torch.Tensor) else copy.deepcopy(value)


@dataclass(frozen=True)
class _SideBySide:
    """One input's outputs and changed state, of all three; and the state before the call, by the same names.

    `measured` are the gradients that were compared with those of the reference while these were computed.
    """

    mine: Leaves
    eager: Leaves
    precise: Leaves
    before: Mapping[str, torch.Tensor]
    measured: Mapping[str, MeasuredGradient]

    def finiteness(self, name: str) -> Finiteness:
        """The finiteness of a tensor of eager's; of a state, that of the elements that the call changed.

        A state of nothing but zeros says something: it was something else before.
        """
        if name in self.measured:
            return self.measured[name].finiteness
        eager, precise = self.eager.tensors[name], self.precise.tensors[name]
        if not name.endswith(AFTER_CALL):
            return finiteness_of(eager, precise)
        changed = changed_elements(self.before.get(name), eager)
        return replace(finiteness_of(eager[changed], precise[changed]), all_zero=False)

    def distance(self, name: str) -> Distance:
        """The distance of a tensor of the optimized one, and of eager's, from the reference."""
        if name in self.measured:
            return self.measured[name].distance
        return measure_distance(*self.triple(name))

    def triple(self, name: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """A tensor of the optimized one, eager's, and the reference's."""
        eager = self.eager.tensors[name]
        return self.mine.tensors[name], eager, _counterpart(name, eager, self.precise)


def _side_by_side(
    run: _Run, optimized: Callable[..., object], model: torch.nn.Module, reference: Reference, budget: Budget
) -> _SideBySide:
    """The optimized one, eager and the reference. Eager runs first, on a copy: in the state that the other meets."""
    start = copy_sharing_parameters(model)
    before, own = state_of(start, run.inputs), state_of(model, run.inputs)
    with parameters_unchanged(model), budget.timing_eager():
        eager, draws = run.noting(copied := copy_sharing_parameters(start), copied)
    generators = random_state(run.devices)
    with buffers_kept(model), layouts_watched() as watch:
        mine = run(optimized, model)
        # A copy may be of another structure than the model, whose own is told by itself; its values are the model's.
        paths = changed_paths(before, eager.state) | changed_paths(replace(own, tensors=before.tensors), mine.state)
        mine = mine.with_state_at(paths)
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
    run: _Run, reference: Reference, start: torch.nn.Module, draws: DrawnValues, gradients: StreamedGradients
) -> tuple[Observed, Mapping[str, MeasuredGradient]]:
    """The run of the reference, and the gradients that were compared with those of a large one and not kept."""
    if run.observe is training_step and reference.by_layer:
        precise = reference.observed(partial(replace(run, observe=gradients.observe).noting, given=draws), start, draws)
        if not gradients.came_in_parts:
            return precise, gradients.measured
    return reference.observed(partial(run.noting, given=draws), start, draws), {}


def _measure(observed: _SideBySide, *, language_model: bool, train: bool) -> Iterator[tuple[str, Measurement]]:
    """Each output of one input, measured, and each tensor that the call changed."""
    eager = observed.eager
    if not eager.tensors:
        raise NotComparable("the model's output contains no tensor", fix="validate a model that returns tensors")
    distances = {name: observed.distance(name) for name in eager.tensors}
    for name, distance in (among_all(distances) if train else distances).items():
        theirs = eager.tensors[name]
        spoken = language_model and has_logits(name, theirs)
        language = measure_language(*observed.triple(name)) if spoken else None
        finiteness = observed.finiteness(name)
        yield name, Measurement(dtype_name(theirs.dtype), tuple(theirs.shape), distance, language, finiteness)


def _counterpart(name: str, eager: torch.Tensor, precise: Leaves) -> torch.Tensor:
    found = precise.tensors.get(name)
    if found is None or found.shape != eager.shape:
        shape = "missing" if found is None else f"of shape {list(found.shape)}"
        raise NotComparable(
            f"`{name}` is {shape} in the reference run, but of shape {list(eager.shape)} in eager",
            fix="the shapes of the model's outputs depend on its precision, so the model cannot be validated",
        )
    return found


def _notes(outputs: Sequence[OutputReport], language_model: bool) -> Iterator[str]:
    if not language_model or any(output.language for output in outputs):
        return
    has_some = any(output.name == LOGITS for output in outputs)
    reason = f"no position of `{LOGITS}` is a valid distribution" if has_some else f"no output is named `{LOGITS}`"
    yield f"{reason}, so KL divergence and top-1 agreement were not measured"


@contextmanager
def _random_state_kept(model: torch.nn.Module) -> Iterator[None]:
    state = random.getstate()
    with torch.random.fork_rng(devices=devices_of(model)):
        try:
            yield
        finally:
            random.setstate(state)


@contextmanager
def parameters_unchanged(model: torch.nn.Module) -> Iterator[None]:
    """Raise `NotComparable` where the block writes to the model's parameters, which eager and the others share."""
    versions = {name: parameter._version for name, parameter in model.named_parameters()}
    yield
    written = [name for name, parameter in model.named_parameters() if parameter._version != versions[name]]
    if written:
        raise NotComparable(
            f"a call of the model writes to its parameter `{written[0]}`, so a second call computes a different result",
            fix="make a buffer of each tensor that a call updates: self.register_buffer(...)",
        )


@contextmanager
def buffers_kept(model: torch.nn.Module) -> Iterator[None]:
    """Put the model's buffers back, values and identities, as they were before the call."""
    constant = constant_buffers(model)
    owners = [
        (module, name, buffer)
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
        if id(buffer) not in constant
    ]
    values = [buffer.clone() for _, _, buffer in owners]
    try:
        yield
    finally:
        for (module, name, buffer), value in zip(owners, values, strict=True):
            if not _identical(buffer, value):
                buffer.copy_(value)
            module._buffers[name] = buffer


def _identical(buffer: torch.Tensor, value: torch.Tensor) -> bool:
    return buffer.shape == value.shape and (buffer.is_meta or bool(torch.equal(buffer, value)))
