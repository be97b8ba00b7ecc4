"""Words of memory that tell whether tensors have changed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.func import vmap

from thunder_core.tracing.library.changes.module_state import CannotWatch
from thunder_core.tracing.library.changes.tensor_words import LAYOUT, TensorStates

pytestmark = pytest.mark.skipif(LAYOUT is None, reason="the layout of tensors in memory is not known")


class Labelled(torch.Tensor):
    """A subclass of tensors."""


CHANGES: dict[str, Callable[[torch.Tensor], object]] = {
    "a write": lambda tensor: tensor.zero_(),
    "a write to a view": lambda tensor: tensor.detach()[0].zero_(),
    "a write by an operator": lambda tensor: torch.ops.aten.fill_.Scalar(tensor, 2.0),
    "other memory": lambda tensor: setattr(tensor, "data", tensor.data.clone()),
    "other strides": lambda tensor: setattr(tensor, "data", tensor.data.t()),
    "another shape": lambda tensor: setattr(tensor, "data", tensor.data[:2]),
    "another offset": lambda tensor: setattr(tensor, "data", tensor.data[1:].view(3, 4)),
    "more dimensions": lambda tensor: setattr(tensor, "data", tensor.data[None]),
    "another dtype": lambda tensor: setattr(tensor, "data", tensor.data.double()),
    "a resized storage": lambda tensor: tensor.untyped_storage().resize_(1 << 20),
    "a resized tensor": lambda tensor: tensor.resize_(2),
    "another storage": lambda tensor: tensor.set_(torch.zeros(2)),  # type: ignore[call-overload]
    "a swap": lambda tensor: torch.utils.swap_tensors(tensor, torch.ones(4, 4)),
    "another class": lambda tensor: setattr(tensor, "__class__", Labelled),
}
USES: dict[str, Callable[[torch.Tensor], object]] = {
    "a sum": lambda tensor: tensor.sum(),
    "a view": lambda tensor: tensor.view(-1).shape,
    "its memory": lambda tensor: tensor.numpy()[0],
    "a copy": lambda tensor: torch.zeros(4, 4).copy_(tensor),
    "an attribute": lambda tensor: setattr(tensor, "label", "weight"),
    "a vmap": lambda tensor: vmap(torch.sin)(tensor),
    "a hook": lambda tensor: tensor.requires_grad_().register_hook(lambda gradient: gradient),
}


def with_others(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return a tensor between others."""
    return (torch.zeros(3), tensor, torch.nn.Parameter(torch.ones(2, 2)))


@pytest.mark.parametrize("change", CHANGES)
def test_each_change_of_a_tensor_is_seen(change: str) -> None:
    tensors = with_others(torch.zeros(8, 4)[:4])
    states = TensorStates(tensors)
    assert states.are_unchanged(tensors)
    CHANGES[change](tensors[1])
    assert not states.are_unchanged(tensors)


@pytest.mark.parametrize("use", USES)
def test_a_use_of_a_tensor_changes_nothing(use: str) -> None:
    tensors = with_others(torch.zeros(4, 4))
    states = TensorStates(tensors)
    USES[use](tensors[1])
    assert states.are_unchanged(tensors)


def test_other_tensors_differ() -> None:
    tensors = with_others(torch.zeros(4, 4))
    states = TensorStates(tensors)
    assert not states.are_unchanged((tensors[0], torch.zeros(4, 4), tensors[2]))
    assert not states.are_unchanged((tensors[1], tensors[0], tensors[2]))
    assert not states.are_unchanged(tensors[:2])
    assert states.are_unchanged(tensors)


def inference_tensor() -> torch.Tensor:
    with torch.inference_mode():
        return torch.ones(2)


REFUSED: dict[str, Callable[[], torch.Tensor]] = {
    "a subclass": lambda: torch.ones(2).as_subclass(Labelled),
    "many dimensions": lambda: torch.ones(1, 1, 1, 1, 1, 1),
    "a sparse tensor": lambda: torch.eye(2).to_sparse(),
    "a nested tensor": lambda: torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged),
    "an inference tensor": inference_tensor,
}


@pytest.mark.parametrize("kind", REFUSED)
def test_tensors_whose_changes_are_unknown_are_refused(kind: str) -> None:
    with pytest.raises(CannotWatch):
        TensorStates((REFUSED[kind](),))


def test_a_wrapped_tensor_is_refused() -> None:
    def refuse(x: torch.Tensor) -> torch.Tensor:
        with pytest.raises(CannotWatch):
            TensorStates((x,))
        return x

    vmap(refuse)(torch.ones(2, 3))
