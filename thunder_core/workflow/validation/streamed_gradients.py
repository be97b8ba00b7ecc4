"""Compare each gradient of the reference when the backward computes it.

A compared gradient is dropped at once, so that only one gradient of the reference is in memory.
"""

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

TakeGradient = Callable[[str, torch.Tensor], bool]


@dataclass(frozen=True)
class MeasuredGradient:
    """The errors of one parameter's gradients against the reference's gradient, and their non-finite elements."""

    distance: Distance
    finiteness: Finiteness


@dataclass
class StreamedGradients:
    """The gradients of the optimized and of the eager training step, which are compared with the reference's gradients.

    Each gradient of the reference is compared when the backward computes it, and then dropped. If the backward later
    adds to a dropped gradient, `came_in_parts` is set and `measured` is not valid: the reference then has to run again
    and keep its gradients.
    """

    optimized: Leaves
    eager: Leaves
    measured: dict[str, MeasuredGradient] = field(default_factory=dict)
    came_in_parts: bool = False

    def observe(self, function: Function, model: torch.nn.Module, inputs: Mapping[str, object]) -> Leaves:
        """Run a training step of the reference; return its outputs, and the gradients that were not measured."""
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
def stream_gradients(model: torch.nn.Module, take: TakeGradient) -> Iterator[None]:
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


def _take_gradient(name: str, take: TakeGradient, gradient: torch.Tensor) -> bool:
    return take(name, dense(gradient))
