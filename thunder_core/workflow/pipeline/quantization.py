"""Quantization before a model is compiled: calibration, comparison with the float model, and skipped layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from thunder_core.backend.quantization.replacement import with_layers_of
from thunder_core.foundation.errors import QualityLost
from thunder_core.passes.transforms.quantize import apply_to_quantize
from thunder_core.tracing.extension.transform import prepare_model
from thunder_core.workflow.models.inputs.dataset import Dataset
from thunder_core.workflow.models.inputs.input_tensors import with_own_caches
from thunder_core.workflow.models.inputs.inputs import Inputs
from thunder_core.workflow.models.loading.loaded_model import LoadedModel
from thunder_core.workflow.models.request.task import LANGUAGE_TASKS
from thunder_core.workflow.pipeline.request.purpose import Purpose
from thunder_core.workflow.pipeline.session.application import apply
from thunder_core.workflow.pipeline.session.plan import Plan
from thunder_core.workflow.pipeline.session.prepare import PreparedModel
from thunder_core.workflow.pipeline.session.progress import CALIBRATE, QUALITY
from thunder_core.workflow.pipeline.session.session import Advance, Session, open_model
from thunder_core.workflow.validation.quality import measure_quality
from thunder_core.workflow.validation.report import QuantizationReport

# The number of the first random input for calibration, far from the numbers of other random inputs.
FIRST_CALIBRATION_INPUT = 100_000
NAMED_LAYERS = 3
AUTO = "auto"


@dataclass(frozen=True, eq=False)
class Quantization:
    """The steps that quantize a plan's model; they change nothing if the recipe does not quantize.

    `begin` and `advance` report the stages and their progress.
    """

    plan: Plan
    begin: Callable[[str], None]
    advance: Advance

    def open_session(self) -> Session:
        """Return the session of the model; the model is quantized, with calibration if requested."""
        request = self.plan.request
        loads = not request.target or request.include_weights
        return open_model(self.plan.prepared, self.plan.purpose, self.begin, self._prepare, loads_weights=loads)

    def check_quality(self, session: Session) -> tuple[Plan, Session, QuantizationReport | None]:
        """Compare the quantized model with the float model; return the plan, the session and the report.

        With `--skip-layers auto`, the layers with the largest errors become float layers until the error is within the
        bound, and the returned plan names these layers. The report is None if there is nothing to compare.

        Raises `QualityLost` if the error exceeds the recipe's bound and layers may not be skipped, or if it exceeds the
        bound even with a single quantized layer.
        """
        original = session.loaded.original
        if original is None or not self.plan.request.validate or self.plan.prepared.quantize is None:
            return self.plan, session, None
        self.begin(QUALITY)
        report = self._quality(session)
        if report.passed:
            return self.plan, session, report
        if self.plan.request.skip_layers != AUTO:
            raise quality_error(report, self.plan.prepared)
        return self._with_fewer_layers(session, report)

    def _prepare(self, loaded: LoadedModel) -> torch.nn.Module:
        """Return the model after preparation by the recipe's transforms."""
        transforms = self.plan.prepared.in_order
        if self.plan.request.calibrate:
            self.begin(CALIBRATE)
            calls = (partial(run, loaded.model, inputs) for inputs in self._calibration_inputs(loaded))
            transforms = apply_to_quantize(lambda quantize: quantize.calibrate(loaded.model, calls), transforms)
        return prepare_model(loaded.model, transforms)

    def _calibration_inputs(self, loaded: LoadedModel) -> Iterator[Inputs]:
        """Yield the batches of the calibration file, or the requested number of random inputs, of the traced size."""
        size, seed = self.plan.size, self.plan.prepared.model.seed
        data = self.plan.calibration
        purpose = Purpose(data=data, cut=True)
        count = (
            int(self.plan.request.calibrate)
            if data is None
            else batches_in(loaded, purpose, data, size.batch, size.seq)
        )
        for number in range(count):
            self.advance(number, count)
            input_number = number if data is not None else FIRST_CALIBRATION_INPUT + number
            yield purpose.inputs(loaded, **size.stated, seed=seed, number=input_number)

    def _quality(self, session: Session) -> QuantizationReport:
        """Return the quality of a session's model on the inputs of the validation."""
        size, purpose = self.plan.size, self.plan.purpose
        numbers, _ = purpose.numbers_to_validate_on(
            session.loaded, batch=size.batch, seq=size.seq, requested=self.plan.request.inputs
        )
        assert session.loaded.original is not None
        report = measure_quality(
            session.loaded.original,
            session.model,
            [partial(run, inputs=session.inputs(size, number)) for number in numbers],
            self.plan.prepared.recipe.loosest_quality,
            language_model=session.loaded.task in LANGUAGE_TASKS,
            advance=self.advance,
        )
        return report.model_copy(update={"calibrated": self._calibration_data})

    @property
    def _calibration_data(self) -> str:
        """The data of the calibration in words; empty without calibration."""
        request = self.plan.request
        if not request.calibrate:
            return ""
        random_inputs = f"{request.calibrate} random input{'' if request.calibrate == '1' else 's'}"
        return random_inputs if self.plan.calibration is None else self.plan.calibration.name

    def _with_fewer_layers(
        self, session: Session, first_report: QuantizationReport
    ) -> tuple[Plan, Session, QuantizationReport]:
        """Find the smallest number of float layers with which the error is within the bound; raise `QualityLost`.

        Layers with the largest errors become float layers first. At least one layer stays quantized.
        """
        ranked = [layer.name for layer in first_report.ranked]
        too_few, enough = 0, 1
        tried: dict[int, tuple[Session, QuantizationReport]] = {}

        def meets_bound(count: int) -> bool:
            fewer = self.with_float_layers(session, ranked[:count])
            tried[count] = fewer, self._quality(fewer)
            return tried[count][1].passed

        most = len(ranked) - 1  # at least one layer stays quantized
        while enough > most or not meets_bound(enough):
            if enough >= most:
                raise quality_error(first_report, self.plan.prepared)
            too_few, enough = enough, min(2 * enough, most)
        while enough - too_few > 1:
            middle = (too_few + enough) // 2
            too_few, enough = (too_few, middle) if meets_bound(middle) else (middle, enough)
        best, report = tried[enough]
        skipped = tuple(ranked[:enough])
        plan = replace(self.plan, prepared=with_skipped_layers(self.plan.prepared, skipped))
        session = replace(best, compile=partial(apply, plan.prepared))
        return plan, session, report.model_copy(update={"skipped": skipped})

    def with_float_layers(self, session: Session, names: Sequence[str]) -> Session:
        """Return the session of a quantized model in which the layers with these names are float layers."""
        assert session.loaded.original is not None
        model = with_layers_of(session.model, session.loaded.original, names)
        loaded = replace(session.loaded, model=session.loaded.original, original=None)
        return replace(session, loaded=loaded.with_prepared_model(model))


def run(model: torch.nn.Module, inputs: Inputs) -> object:
    """Call a model on inputs."""
    return model(**with_own_caches(inputs))


def batches_in(loaded: LoadedModel, purpose: Purpose, data: Dataset, batch: int, seq: int) -> int:
    """Return the number of batches in a file of samples."""
    return len(purpose.batches(loaded, data, batch=batch, seq=seq))


def with_skipped_layers(prepared: PreparedModel, names: Sequence[str]) -> PreparedModel:
    """Return a preparation that also skips these layers when it quantizes."""
    in_order = apply_to_quantize(lambda quantize: replace(quantize, skip=(*quantize.skip, *names)), prepared.in_order)
    return replace(prepared, in_order=in_order)


def quality_error(report: QuantizationReport, prepared: PreparedModel) -> QualityLost:
    """Return the error for a model whose error exceeds the bound, with the worst layers."""
    layers = ", ".join(
        f"{layer.name} ({layer.error:.2g})" for layer in report.ranked[:NAMED_LAYERS] if layer.error is not None
    )
    error = QualityLost(
        f"the model quantized by {prepared.recipe.name} differs from the float model by more than the bound: "
        f"{'; '.join(report.failures)}; the layers with the largest errors are {layers}",
        fix="keep such layers in float (--skip-layers auto, or --set skip=PATTERN), calibrate (--calibrate 16, with "
        "int4-weight-only), or allow a larger error (--set error=...)",
    )
    error.report = report
    return error
