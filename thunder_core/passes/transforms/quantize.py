"""Low-bit weights: linear layers and the token embedding table are replaced before the model is traced."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch

from thunder_core.backend.quantization.calibration import importances_of
from thunder_core.backend.quantization.replacement import QuantizationSettings, quantized_model
from thunder_core.passes.recipe import Transform
from thunder_core.tracing.ir.trace import Trace

CALIBRATED_SCHEME = "int4-weight-only"  # the scheme whose rounding depends on the layers' inputs


@dataclass(frozen=True)
class Quantize(QuantizationSettings, Transform):
    """Replace linear layers, and the token embedding table, by layers with quantized weights.

    The options are the settings of the quantization, and whether the weights are `calibrated`. The other parameters are
    shared with the given model, and are frozen. In a model in training mode, trained parameters remain trainable, as
    `quantized_model` describes. The trace contains the operations of the quantized layers.
    """

    operations: ClassVar[tuple[str, ...]] = ("thunder_core.backend.quantization.products",)

    calibrated: bool = field(default=False, repr=False, compare=False)
    importances: Mapping[str, torch.Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def can_be_calibrated(self) -> bool:
        """Whether the inputs of layers can decide how their weights are rounded."""
        return self.scheme == CALIBRATED_SCHEME

    @property
    def prepares_by_data(self) -> bool:
        """Whether the weights are rounded by a calibration, whose data no artifact stores."""
        return self.calibrated

    def calibrate(self, model: torch.nn.Module, calls: Iterable[Callable[[], object]]) -> Quantize:
        """Return the transform with weights rounded according to the layers' inputs in these calls of the model."""
        result = replace(self, calibrated=True)
        object.__setattr__(result, "importances", importances_of(model, self, calls))
        return result

    def prepare(self, model: torch.nn.Module) -> torch.nn.Module:
        """Return a copy of the model with quantized layers; raise `BadQuantization` if no layer is suitable."""
        return quantized_model(model, self, importances=self.importances)

    def restructure(self, model: torch.nn.Module) -> torch.nn.Module:
        """Return a copy of the model like `prepare`, but with uninitialized quantized weights."""
        return quantized_model(model, self, is_empty=True)

    def __call__(self, trace: Trace) -> Trace:
        """Return the trace unchanged."""
        return trace


def apply_to_quantize(change: Callable[[Quantize], Quantize], transforms: Iterable[Transform]) -> tuple[Transform, ...]:
    """Return transforms in their order, with `change` applied to each `Quantize`."""
    return tuple(change(transform) if isinstance(transform, Quantize) else transform for transform in transforms)
