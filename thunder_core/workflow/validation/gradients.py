"""The values that are compared of a call: its outputs or, of a step of training, the loss and all gradients as well."""

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
Observe = Callable[[Function, torch.nn.Module, Mapping[str, object]], Leaves]


def output(function: Function, _model: torch.nn.Module, inputs: Mapping[str, object]) -> Leaves:
    """The outputs of a call, which autograd does not record."""
    with torch.no_grad():
        return leaves_of(function(**inputs))


def training_step(function: Function, model: torch.nn.Module, inputs: Mapping[str, object]) -> Leaves:
    """The outputs of a call, and behind them the gradient of its loss for each of the model's parameters.

    `weight.grad` is that of the parameter `weight`; a parameter without one is noted as such. The model's own
    gradients are left as they were.
    """
    with torch.enable_grad(), gradients_kept(model):
        returned = function(**inputs)
        loss_of(returned).backward()  # type: ignore[no-untyped-call]
        found = leaves_of(returned)
        found.tensors = {name: tensor.detach() for name, tensor in found.tensors.items()}
        found.adopt(gradients_of(model))
    return found


def gradients_of(model: torch.nn.Module) -> Leaves:
    """The gradients that a model's parameters have."""
    named = {f"{name}{GRADIENT}": parameter.grad for name, parameter in model.named_parameters()}
    return Leaves(
        tensors={name: dense(gradient) for name, gradient in named.items() if gradient is not None},
        structure={name: "None" for name, gradient in named.items() if gradient is None},
    )


def on_gradient(leaf: torch.Tensor, take: Callable[[torch.Tensor], bool]) -> RemovableHandle:
    """Hand each gradient of a leaf to a function when it is there; it is dropped where the function returns True."""

    def hand_over(leaf: torch.Tensor) -> None:
        if leaf.grad is not None and take(leaf.grad):
            leaf.grad = None

    handle: RemovableHandle = leaf.register_post_accumulate_grad_hook(hand_over)  # type: ignore[no-untyped-call]
    return handle


def dense(gradient: torch.Tensor) -> torch.Tensor:
    """A gradient as a tensor with strides, as that of an embedding may not be."""
    return gradient if gradient.layout == torch.strided else gradient.to_dense()


def loss_of(returned: object) -> torch.Tensor:
    """The loss in what a model returns for labels: by its name or, of a tuple, the first; raises `NoLoss`."""
    named = returned.get(LOSS) if isinstance(returned, Mapping) else getattr(returned, LOSS, None)
    found = returned[0] if isinstance(returned, tuple) and returned else named
    if not isinstance(found, torch.Tensor) or found.ndim or not found.requires_grad:
        raise NoLoss(
            "the model got labels, but returned no loss that depends on its parameters",
            fix="set --task to the task to train for, or compile your own training step: thunder_core.jit(function)",
        )
    return found


def among_all(measured: Mapping[str, Distance]) -> dict[str, Distance]:
    """The distances, where gradients that are nothing but rounding in eager are held against the largest of the step.

    Some gradients are zero (that of the bias of an attention's keys, since softmax does not see it): what eager has for
    them is its own error, and a tolerance relative to them would ask for the same rounding.
    """
    largest = max((one.scale for name, one in measured.items() if name.endswith(GRADIENT)), default=0.0)
    return {
        name: replace(one, scale=largest) if name.endswith(GRADIENT) and one.scale <= one.eager.maximum else one
        for name, one in measured.items()
    }


@contextmanager
def gradients_kept(model: torch.nn.Module) -> Iterator[None]:
    """While the block runs the parameters begin without gradients; after it they have those that they had."""
    before = [(parameter, parameter.grad) for parameter in model.parameters()]
    for parameter, _ in before:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in before:
            parameter.grad = gradient
