"""Eager PyTorch makes the calls of programs with operations that no trace can represent, with one warning."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_leaves

import thunder_core as thunder
from thunder_core.foundation.errors import RecompileWarning, UnsupportedError


@torch.library.custom_op("untraceable::doubled", mutates_args=())
def doubled(x: Tensor) -> Tensor:
    return x * 2


def operator_without_fake(x: Tensor) -> Any:
    return doubled(x) + 1


def address(x: Tensor) -> Any:
    return x if x.data_ptr() == x[:2].data_ptr() else -x


def array_of_uninitialized_memory(x: Tensor) -> Any:
    return x * torch.empty_like(x).numpy().ndim


def array_of_uninitialized_view(x: Tensor) -> Any:
    return x * x.new_empty(2, 2).view(4).detach().numpy().shape[0]


def text_of_uninitialized_memory(x: Tensor) -> Any:
    return x * min(len(repr(torch.empty(3))), 1)


def quantized(x: Tensor) -> Any:
    return torch.quantize_per_tensor(x, 0.5, 0, torch.qint8).dequantize()


def nested(x: Tensor) -> Any:
    return torch.nested.nested_tensor([x, x[:1]]).to_padded_tensor(0.0)


def replaced_memory(x: Tensor) -> Any:
    y = x.clone()
    view = y[:2]
    y.set_(torch.zeros(2).untyped_storage(), 0, (2,))
    return y, view


def packed(x: Tensor) -> Any:
    weight = x.clone().requires_grad_()
    with saved_tensors_hooks(lambda tensor: tensor + 1, lambda tensor: tensor * 2):
        loss = (weight * weight).sum()
    loss.backward()
    return weight.grad


def pickled(x: Tensor) -> Any:
    return x * len(pickle.dumps(x))


def written_array(x: Tensor) -> Any:
    x.numpy()[0] = 5
    return x * 2


def copied_storage(x: Tensor) -> Any:
    return x * torch.UntypedStorage((x * 2).untyped_storage()).nbytes()


def arrays(x: Tensor) -> Any:
    array = x.numpy()
    return array, array[1:]


def applied(x: Tensor) -> Any:
    return x.clone().apply_(lambda element: element * 2)


def mapped(x: Tensor) -> Any:
    return x.clone().map_(x * 2, lambda element, other: element + other)


def mapped_with_two(x: Tensor) -> Any:
    return x.clone().map2_(x * 2, x * 3, lambda element, second, third: element + second * third)  # type: ignore[attr-defined]


PROGRAMS = (
    operator_without_fake,
    address,
    quantized,
    nested,
    replaced_memory,
    packed,
    pickled,
    written_array,
    copied_storage,
    arrays,
    applied,
    mapped,
    mapped_with_two,
    array_of_uninitialized_memory,
    array_of_uninitialized_view,
    text_of_uninitialized_memory,
)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.filterwarnings("ignore:.*nested tensors")
def test_eager_makes_the_calls_of_a_program_that_cannot_be_traced(program: Callable[[Tensor], Any]) -> None:
    fast = thunder.jit(program, executors=("torch",))
    for start in (1.0, 2.0, 3.0):
        ours, theirs = torch.arange(3.0) + start, torch.arange(3.0) + start
        if start == 1.0:
            with pytest.warns(RecompileWarning, match="made in eager PyTorch"):
                found = fast(ours)
        else:
            found = fast(ours)
        for result, expected in zip(tree_leaves(found), tree_leaves(program(theirs)), strict=True):
            assert torch.equal(torch.as_tensor(result), torch.as_tensor(expected))
        assert torch.equal(ours, theirs)
    assert thunder.cache_misses(fast) == 1


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.filterwarnings("ignore:.*nested tensors")
def test_a_program_that_cannot_be_traced_is_refused_where_values_are_errors(program: Callable[[Tensor], Any]) -> None:
    with pytest.raises(UnsupportedError):
        thunder.jit(program, data_dependent="error")(torch.ones(3))
