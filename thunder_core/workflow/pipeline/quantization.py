"""Quantization before a model is compiled: calibration, the comparison with the float model, and layers left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from thunder_core.backend.quantization.replacement import with_layers_of
from thunder_core.foundation.errors import QualityLost
from thunder_core.passes.transforms.quantize import Quantize
from thunder_core.tracing.extension.transform import prepared_model
from thunder_core.workflow.models.inputs.dataset import Dataset
from thunder_core.workflow.models.inputs.input_tensors import with_own_caches
from thunder_core.workflow.models.inputs.inputs import Inputs
from thunder_core.workflow.models.loading.load import LoadedModel
from thunder_core.workflow.models.request.task import LANGUAGE_TASKS
from thunder_core.workflow.pipeline.request.purpose import Purpose
from thunder_core.workflow.pipeline.session.application import apply
from thunder_core.workflow.pipeline.session.planning import Plan
from thunder_core.workflow.pipeline.session.prepare import Prepared
from thunder_core.workflow.pipeline.session.progress import CALIBRATE, QUALITY
from thunder_core.workflow.pipeline.session.session import Advance, Session, open_model
from thunder_core.workflow.validation.quality import measure_quality
from thunder_core.workflow.validation.report import QuantizationReport

FIRST_CALIBRATION = 100_000  # the number of the first input that is drawn for calibration, far behind the others
NAMED_LAYERS = 3
AUTO = "auto"


@dataclass(frozen=True, eq=False)
class Quantization:
    """The quantization of a plan's model, step by step; a recipe that quantizes nothing passes through.

    `begin` and `advance` tell of stages and of how much of one is done.
    """

    plan: Plan
    begin: Callable[[str], None]
    advance: Advance

    def opened(self) -> Session:
        """The session of the model, quantized with what it was calibrated with, where that was asked for."""
        request = self.plan.request
        loads = not request.target or request.include_weights
        return open_model(self.plan.prepared, self.plan.purpose, self.begin, self._prepared, loads_weights=loads)

    def judged(self, session: Session) -> tuple[Plan, Session, QuantizationReport | None]:
        """The session, and how far its model is from the float one; the plan says which layers stay as they are.

        Raises `QualityLost` where that is further than the recipe's bound, and no layers may be left out, or too many
        would have to be.
        """
        original = session.loaded.original
        if original is None or not self.plan.request.validate or self.plan.prepared.quantize is None:
            return self.plan, session, None
        self.begin(QUALITY)
        found = self._quality(session)
        if found.passed:
            return self.plan, session, found
        if self.plan.request.skip_layers != AUTO:
            raise lost(found, self.plan.prepared)
        return self._with_fewer_layers(session, found)

    def _prepared(self, loaded: LoadedModel) -> torch.nn.Module:
        """The model as the recipe's transforms prepare it."""
        transforms = self.plan.prepared.in_order
        if self.plan.request.calibrate:
            self.begin(CALIBRATE)
            calls = (partial(run, loaded.model, inputs) for inputs in self._calibration_inputs(loaded))
            transforms = tuple(
                one.calibrated(loaded.model, calls) if isinstance(one, Quantize) else one for one in transforms
            )
        return prepared_model(loaded.model, transforms)

    def _calibration_inputs(self, loaded: LoadedModel) -> Iterator[Inputs]:
        """The batches of the calibration's file, or as many drawn ones as it names; of the size that is traced."""
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
            place = number if data is not None else FIRST_CALIBRATION + number
            yield purpose.inputs(loaded, **size.stated, seed=seed, number=place)

    def _quality(self, session: Session) -> QuantizationReport:
        """The quality of a session's model on the inputs that the compiled one is validated on."""
        size, purpose = self.plan.size, self.plan.purpose
        numbers, _ = purpose.numbers_to_validate_on(
            session.loaded, batch=size.batch, seq=size.seq, wanted=self.plan.request.inputs
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
        return report.model_copy(update={"calibrated": self._calibrated})

    @property
    def _calibrated(self) -> str:
        request = self.plan.request
        if not request.calibrate:
            return ""
        drawn = f"{request.calibrate} random input{'' if request.calibrate == '1' else 's'}"
        return drawn if self.plan.calibration is None else self.plan.calibration.name

    def _with_fewer_layers(
        self, session: Session, found: QuantizationReport
    ) -> tuple[Plan, Session, QuantizationReport]:
        """The session with as many float layers as the bound needs, those that lose most; raises `QualityLost`."""
        ranked = [layer.name for layer in found.ranked]
        too_few, enough = 0, 1
        tried: dict[int, tuple[Session, QuantizationReport]] = {}

        def holds(count: int) -> bool:
            fewer = self._without(session, ranked[:count])
            tried[count] = fewer, self._quality(fewer)
            return tried[count][1].passed

        while not holds(enough):
            too_few = enough
            if enough == len(ranked) - 1:
                raise lost(found, self.plan.prepared)
            enough = min(2 * enough, len(ranked) - 1)
        while enough - too_few > 1:
            middle = (too_few + enough) // 2
            too_few, enough = (too_few, middle) if holds(middle) else (middle, enough)
        best, report = tried[enough]
        skipped = tuple(ranked[:enough])
        plan = replace(self.plan, prepared=with_skipped(self.plan.prepared, skipped))
        session = replace(best, compile=partial(apply, plan.prepared))
        return plan, session, report.model_copy(update={"skipped": skipped})

    def _without(self, session: Session, names: Sequence[str]) -> Session:
        """The session of a model whose layers of these names are the float ones."""
        assert session.loaded.original is not None
        model = with_layers_of(session.model, session.loaded.original, names)
        loaded = replace(session.loaded, model=session.loaded.original, original=None)
        return replace(session, loaded=loaded.prepared_as(model))


def run(model: torch.nn.Module, inputs: Inputs) -> object:
    """Call a model on inputs."""
    return model(**with_own_caches(inputs))


def batches_in(loaded: LoadedModel, purpose: Purpose, data: Dataset, batch: int, seq: int) -> int:
    """The number of batches in a file."""
    return len(purpose.batches(loaded, data, batch=batch, seq=seq))


def with_skipped(prepared: Prepared, names: Sequence[str]) -> Prepared:
    """The recipe, whose transform leaves out these layers as well."""
    in_order = tuple(
        replace(one, skip=(*one.skip, *names)) if isinstance(one, Quantize) else one for one in prepared.in_order
    )
    return replace(prepared, in_order=in_order)


def lost(found: QuantizationReport, prepared: Prepared) -> QualityLost:
    """The error for a model that loses more than the bound allows, with the layers that lose most."""
    layers = ", ".join(f"{one.name} ({one.error:.2g})" for one in found.ranked[:NAMED_LAYERS] if one.error is not None)
    error = QualityLost(
        f"the model quantized by {prepared.recipe.name} differs from the float model by more than the bound: "
        f"{'; '.join(found.failures)}; the layers with the largest errors are {layers}",
        fix="keep such layers in float (--skip-layers auto, or --set skip=PATTERN), calibrate (--calibrate 16, with "
        "int4-weight-only), or allow a larger error (--set error=...)",
    )
    error.report = found
    return error
