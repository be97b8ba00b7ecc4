"""Prepared forms of weights are made once, freed with the weight, and made again after a write."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch

from thunder_core.backend.fusion.prepared_weights import PreparedWeights


def counting(prepared: PreparedWeights[int]) -> Callable[..., int]:
    """Return a function that returns the number of the form that tensors get."""
    made: list[int] = []

    def form_of(*tensors: torch.Tensor | None, settings: object = None) -> int:
        return prepared.form_of(tensors, lambda: made.append(len(made)) or made[-1], settings)

    return form_of


def test_a_form_is_made_once_for_each_of_the_settings() -> None:
    form_of, weight = counting(PreparedWeights()), torch.ones(2)
    assert [form_of(weight), form_of(weight), form_of(weight, settings=1), form_of(weight)] == [0, 0, 1, 0]


WRITES: dict[str, Callable[[torch.Tensor], object]] = {
    "in place": lambda tensor: tensor.add_(1),
    "other memory": lambda tensor: setattr(tensor, "data", tensor.data.clone()),
    "other shape": lambda tensor: setattr(tensor, "data", tensor.data.view(2, 1)),
    "other strides": lambda tensor: setattr(tensor, "data", tensor.data[:1].expand(2)),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("place", [0, 2])
def test_a_form_is_made_again_after_a_write(write: str, place: int) -> None:
    form_of, tensors = counting(PreparedWeights()), (torch.ones(2), None, torch.ones(2))
    assert form_of(*tensors) == form_of(*tensors) == 0
    WRITES[write](tensors[place])
    assert form_of(*tensors) == form_of(*tensors) == 1


def test_a_form_is_made_again_after_two_assignments_that_reuse_the_first_address() -> None:
    prepared: PreparedWeights[torch.Tensor] = PreparedWeights()
    weight = torch.zeros(64, 64)
    for number in range(1, 9):
        weight.data = weight.data + 1
        weight.data = weight.data + 1  # the allocator may use the memory of the first tensor again
        assert prepared.form_of([weight], weight.clone)[0, 0] == 2 * number


def test_forms_are_freed_with_the_weight() -> None:
    prepared: PreparedWeights[int] = PreparedWeights()
    form_of, weights = counting(prepared), [torch.ones(2), torch.ones(2)]
    for weight in weights:
        form_of(weight)
    del weights[0], weight
    gc.collect()
    assert list(prepared.forms) == [id(weights[0])]


def test_a_weight_with_the_id_of_another_weight_has_its_own_form() -> None:
    prepared: PreparedWeights[int] = PreparedWeights()
    form_of, first, second = counting(prepared), torch.ones(2), torch.ones(2)
    form_of(first)
    prepared.forms[id(second)] = prepared.forms[id(first)]
    assert form_of(second) == form_of(second) == 1
    reference = prepared.forms[id(first)].weight
    prepared._free(id(second), reference)
    assert form_of(second) == 1


def test_a_weight_of_inference_mode_has_a_new_form_at_each_call() -> None:
    form_of = counting(PreparedWeights())
    with torch.inference_mode():
        weight = torch.ones(2)
    assert [form_of(weight), form_of(weight), form_of(torch.ones(2), weight)] == [0, 1, 2]
