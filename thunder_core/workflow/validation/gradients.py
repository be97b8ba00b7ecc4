"""The compared values of a call: its outputs and, for a training step, the loss and all gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch.utils.hooks import RemovableHandle

from thunder_core.foundation.errors import NoLoss
from thunder_core.workflow.validation.distance import Distance
from thunder_core.workflow.validation.leaves import Leaves, leaves_of
from thunder_core.workflow.validation.report import GRADIENT, LOSS

Function = Callable[..., object]
ObserveGradients = Callable[[Function, torch.nn.Module, Mapping[str, object]], Leaves]


def output(function: Function, _model: torch.nn.Module, inputs: Mapping[str, object]) -> Leaves:
    """Return the outputs of a call with gradients disabled."""
    with torch.no_grad():
        return leaves_of(function(**inputs))


def training_step(function: Function, model: torch.nn.Module, inputs: Mapping[str, object]) -> Leaves:
    """Return the outputs of a call, and the gradient of its loss for each of the model's parameters.

    `weight.grad` is the gradient of the parameter `weight`. A parameter without a gradient is recorded as None. The
    model's own gradients are not changed.
    """
    with torch.enable_grad(), preserve_gradients(model):
        returned = function(**inputs)
        loss_of(returned).backward()  # type: ignore[no-untyped-call]
        leaves = leaves_of(returned)
        leaves.tensors = {name: tensor.detach() for name, tensor in leaves.tensors.items()}
        leaves.adopt(gradients_of(model))
    return leaves


def gradients_of(model: torch.nn.Module) -> Leaves:
    """Return the gradients of a model's parameters."""
    named = {f"{name}{GRADIENT}": parameter.grad for name, parameter in model.named_parameters()}
    return Leaves(
        tensors={name: dense(gradient) for name, gradient in named.items() if gradient is not None},
        structure={name: "None" for name, gradient in named.items() if gradient is None},
    )


def on_gradient(leaf: torch.Tensor, take: Callable[[torch.Tensor], bool]) -> RemovableHandle:
    """Call a function with each gradient of a leaf when it is computed; drop the gradient if that returns True."""

    def hand_over(leaf: torch.Tensor) -> None:
        if leaf.grad is not None and take(leaf.grad):
            leaf.grad = None

    handle: RemovableHandle = leaf.register_post_accumulate_grad_hook(hand_over)  # type: ignore[no-untyped-call]
    return handle


def dense(gradient: torch.Tensor) -> torch.Tensor:
    """Return a gradient as a strided tensor; the gradient of an embedding may be sparse."""
    return gradient if gradient.layout == torch.strided else gradient.to_dense()


def loss_of(returned: object) -> torch.Tensor:
    """Return the loss in a model's output: by its name, or the first item of a tuple; raise `NoLoss`."""
    named = returned.get(LOSS) if isinstance(returned, Mapping) else getattr(returned, LOSS, None)
    loss = returned[0] if isinstance(returned, tuple) and returned else named
    if not isinstance(loss, torch.Tensor) or loss.ndim or not loss.requires_grad:
        raise NoLoss(
            "the model got labels, but returned no loss that depends on its parameters",
            fix="set --task to the task to train for, or compile your own training step: thunder_core.jit(function)",
        )
    return loss


def with_scale_of_step(measured: Mapping[str, Distance]) -> dict[str, Distance]:
    """Return the distances, with a larger scale for gradients that consist only of rounding errors in eager.

    Some gradients are mathematically zero, for example the gradient of the bias of attention's keys, because softmax
    does not depend on it. Eager's values are then rounding errors, and a relative tolerance would require the same
    rounding. The largest gradient of the step is used as their scale.
    """
    gradients = [distance for name, distance in measured.items() if name.endswith(GRADIENT)]
    largest = max((gradient.scale for gradient in gradients), default=0.0)
    return {
        name: replace(distance, scale=largest) if _is_rounding(name, distance) else distance
        for name, distance in measured.items()
    }


def _is_rounding(name: str, distance: Distance) -> bool:
    return name.endswith(GRADIENT) and distance.scale <= distance.eager.maximum


@contextmanager
def preserve_gradients(model: torch.nn.Module) -> Iterator[None]:
    """While the block runs, clear the gradients of the parameters; restore them afterwards."""
    before = [(parameter, parameter.grad) for parameter in model.parameters()]
    for parameter, _ in before:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in before:
            parameter.grad = gradient
