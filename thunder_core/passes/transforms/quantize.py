"""Weights in few bits: linear layers and the table of tokens are exchanged before the model is traced."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch

from thunder_core.backend.quantization.calibration import importances_of
from thunder_core.backend.quantization.replacement import QuantizationSettings, quantized_model
from thunder_core.passes.recipe import Transform
from thunder_core.tracing.ir.trace import Trace

CALIBRATED = "int4-weight-only"  # the scheme whose groups are rounded by what they are multiplied with


@dataclass(frozen=True)
class Quantize(QuantizationSettings, Transform):
    """Exchange linear layers, and the table of tokens, for ones with quantized weights; the trace has their operations.

    Its options are the settings of the quantization. The model's other parameters are shared with the model that was
    given, and frozen.
    """

    operations: ClassVar[tuple[str, ...]] = ("thunder_core.backend.quantization.products",)

    importances: Mapping[str, torch.Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def is_calibrated(self) -> bool:
        """Whether what layers are given decides how their weights are rounded."""
        return self.scheme == CALIBRATED

    def calibrated(self, model: torch.nn.Module, calls: Iterable[Callable[[], object]]) -> Quantize:
        """The transform that rounds weights by what the layers of the model are given in these calls of it."""
        result = replace(self)
        object.__setattr__(result, "importances", importances_of(model, self, calls))
        return result

    def prepare(self, model: torch.nn.Module) -> torch.nn.Module:
        """A copy of the model with quantized layers; raises `BadQuantization` where it has none that fit."""
        return quantized_model(model, self, importances=self.importances)

    def restructure(self, model: torch.nn.Module) -> torch.nn.Module:
        """The copy that `prepare` makes, with codes that have no values yet."""
        return quantized_model(model, self, is_empty=True)

    def __call__(self, trace: Trace) -> Trace:
        """The trace as it is."""
        return trace
