"""Gradients of the reference that are compared as soon as they are computed, so that only one is in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch

from thunder_core.workflow.validation.degenerate_outputs import Finiteness, finiteness_of
from thunder_core.workflow.validation.distance import Distance, measure_distance
from thunder_core.workflow.validation.gradients import Function, dense, on_gradient, training_step
from thunder_core.workflow.validation.leaves import Leaves
from thunder_core.workflow.validation.report import GRADIENT

Take = Callable[[str, torch.Tensor], bool]


@dataclass(frozen=True)
class MeasuredGradient:
    """The distances of one gradient from the reference, and its finiteness."""

    distance: Distance
    finiteness: Finiteness


@dataclass
class StreamedGradients:
    """The gradients of two training steps, each compared with the reference's gradient when that is computed.

    The reference's gradient is dropped after the comparison. If a gradient comes in several parts, `came_in_parts` is
    set and `measured` is not valid: the reference has to run again and keep its gradients.
    """

    optimized: Leaves
    eager: Leaves
    measured: dict[str, MeasuredGradient] = field(default_factory=dict)
    came_in_parts: bool = False

    def observe(self, function: Function, model: torch.nn.Module, inputs: Mapping[str, object]) -> Leaves:
        """Observe a training step of the reference, without the gradients that are measured."""
        self.measured, self.came_in_parts = {}, False
        with stream_gradients(model, self._measure):
            return training_step(function, model, inputs)

    def _measure(self, name: str, gradient: torch.Tensor) -> bool:
        """Measure a gradient; return False if the gradient cannot be measured and must be kept."""
        optimized, eager = self.optimized.tensors.get(name), self.eager.tensors.get(name)
        self.came_in_parts = self.came_in_parts or name in self.measured
        if optimized is None or eager is None or gradient.shape != eager.shape:
            return False
        distance = measure_distance(optimized, eager, gradient)
        self.measured[name] = MeasuredGradient(distance, finiteness_of(eager, gradient))
        return True


@contextmanager
def stream_gradients(model: torch.nn.Module, take: Take) -> Iterator[None]:
    """While the block runs, call `take` with each gradient of a model; drop the gradient if that returns True."""
    parameters = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    hooks = [
        on_gradient(parameter, partial(_take_gradient, f"{name}{GRADIENT}", take)) for name, parameter in parameters
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _take_gradient(name: str, take: Take, gradient: torch.Tensor) -> bool:
    return take(name, dense(gradient))
