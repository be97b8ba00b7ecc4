"""Validation: the optimized callable, eager PyTorch and the reference, side by side on the same inputs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from thunder_core.errors import Bug, NotComparable
from thunder_core.recipe import Tolerance
from thunder_core.validation.distance import measure_distance
from thunder_core.validation.language import LOGITS, has_logits, measure_language
from thunder_core.validation.leaves import Leaves, dtype_name, leaves_of, require_same_structure
from thunder_core.validation.precision import Reference, twin, widest_affordable
from thunder_core.validation.report import OutputReport, ValidationReport
from thunder_core.validation.verdict import Measurement, judge, require_passed

RUNS_PER_INPUT = 3


def say_nothing(done: int, total: int) -> None:
    """A progress callback for those who do not watch."""


def validate(
    optimized: Callable[..., object],
    model: torch.nn.Module,
    inputs: Sequence[Mapping[str, torch.Tensor]],
    tolerance: Tolerance,
    *,
    language_model: bool,
    progress: Callable[[int, int], None] = say_nothing,
    reference_dtype: torch.dtype | None = None,
    seed: int = 0,
) -> ValidationReport:
    """Compare `optimized(**inputs)` with `model(**inputs)` on each of the inputs.

    Both are held against a reference: the same model in `reference_dtype` (default: float64, or float32 where that
    does not fit into memory). The random state is seeded alike before each run, and is put back afterwards; so are
    the model's buffers. `progress(done, total)` is called after each run.

    Raises OutOfTolerance (with the report as its `report`) if an output is out of tolerance, and NotComparable if
    the outputs differ in structure, shape or dtype, or the model cannot be copied.
    """
    if not inputs:
        raise Bug("validation was asked for without inputs", fix="give at least one input")
    reference = Reference(model, reference_dtype or widest_affordable(model))
    measured: dict[str, list[Measurement]] = {}
    ticks = itertools.count(1)
    with torch.no_grad(), _random_state_kept(model):
        for number, given in enumerate(inputs):
            run = _Run(given, seed + number, lambda: progress(next(ticks), RUNS_PER_INPUT * len(inputs)))
            for name, measurement in _measure(run, optimized, model, reference, language_model):
                measured.setdefault(name, []).append(measurement)
    outputs = tuple(judge(name, measurements, tolerance) for name, measurements in measured.items())
    report = ValidationReport(
        passed=all(output.passed for output in outputs),
        inputs=len(inputs),
        reference_dtype=reference.name,
        tolerance=tolerance,
        outputs=outputs,
        notes=(*reference.notes, *_notes(outputs, language_model)),
    )
    require_passed(report)
    return report


@dataclass(frozen=True)
class _Run:
    """One input, given to one callable after another in the same random state."""

    inputs: Mapping[str, object]
    seed: int
    tick: Callable[[], None]

    def __call__(self, function: Callable[..., object]) -> Leaves:
        torch.manual_seed(self.seed)
        random.seed(self.seed)
        inputs = {name: _own(value) for name, value in self.inputs.items()}
        leaves = leaves_of(function(**inputs))
        self.tick()
        return leaves


def _own(value: object) -> object:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _measure(
    run: _Run, optimized: Callable[..., object], model: torch.nn.Module, reference: Reference, language_model: bool
) -> Iterator[tuple[str, Measurement]]:
    """Each output of one input, measured. Eager runs first, on a twin: in the state that the optimized one meets."""
    eager = run(twin(model))
    with _buffers_kept(model):
        mine = run(optimized)
    require_same_structure(mine, eager)
    precise = run(reference)
    if not eager.tensors:
        raise NotComparable("the model's output holds no tensor", fix="validate a model that returns tensors")
    for name, theirs in eager.tensors.items():
        triple = (mine.tensors[name], theirs, _counterpart(name, theirs, precise))
        spoken = language_model and has_logits(name, theirs)
        yield (
            name,
            Measurement(
                dtype=dtype_name(theirs.dtype),
                shape=tuple(theirs.shape),
                distance=measure_distance(*triple),
                language=measure_language(*triple) if spoken else None,
            ),
        )


def _counterpart(name: str, eager: torch.Tensor, precise: Leaves) -> torch.Tensor:
    found = precise.tensors.get(name)
    if found is None or found.shape != eager.shape:
        shape = "missing" if found is None else f"of shape {list(found.shape)}"
        raise NotComparable(
            f"`{name}` is {shape} in the reference run and of shape {list(eager.shape)} in eager's",
            fix="the shapes of the model's outputs depend on its precision: it cannot be validated",
        )
    return found


def _notes(outputs: Sequence[OutputReport], language_model: bool) -> Iterator[str]:
    if language_model and all(output.language is None for output in outputs):
        yield f"no output is called `{LOGITS}`, so KL divergence and top-1 agreement were not measured"


@contextmanager
def _random_state_kept(model: torch.nn.Module) -> Iterator[None]:
    state = random.getstate()
    devices = {tensor.device for tensor in model.parameters() if tensor.is_cuda}
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            random.setstate(state)


@contextmanager
def _buffers_kept(model: torch.nn.Module) -> Iterator[None]:
    """Put the model's buffers back, values and identities, as they were before the call."""
    owners = [(m, name, buffer) for m in model.modules() for name, buffer in m.named_buffers(recurse=False)]
    values = [buffer.clone() for _, _, buffer in owners]
    try:
        yield
    finally:
        for (module, name, buffer), value in zip(owners, values, strict=True):
            if not _identical(buffer, value):
                buffer.copy_(value)
            module._buffers[name] = buffer


def _identical(buffer: torch.Tensor, value: torch.Tensor) -> bool:
    return buffer.shape == value.shape and bool(torch.equal(buffer, value))
