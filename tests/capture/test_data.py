"""Arrays and texts that a program makes of tensors match eager at each call, and the trace checks their values."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

import thunder_core as thunder
from thunder_core.foundation.errors import DataDependent, RecompileWarning

PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "numpy": lambda x: (x * 2).numpy(),
    "numpy of an argument": lambda x: x.detach().cpu().numpy(),
    "asarray": lambda x: (np.asarray(x * 2), np.asarray(x, dtype=np.float64)),
    "a copy": lambda x: (x * 2).numpy().copy() + 1,
    "a number": lambda x: x * float((x * 2).numpy().sum()),
    "back": lambda x: torch.from_numpy((x * 2).numpy() * 2) + x,
    "integers": lambda x: np.flatnonzero((x > 1).numpy()),
    "a text that is looked at": lambda x: repr(x + 1).upper(),
    "a parameter": lambda x: str(torch.nn.Parameter(x * 2)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_arrays_and_texts_match_eager_and_are_guarded(name: str) -> None:
    program = PROGRAMS[name]
    compiled = thunder.jit(program)
    for step in (1, 2, 1, 2):
        x = torch.ones(2) * step
        found, wanted = compiled(x), program(x)
        assert repr(found) == repr(wanted)
    assert thunder.cache_misses(compiled) == 2


def test_an_array_shares_memory_with_its_tensor() -> None:
    def program(x: Tensor) -> Any:
        y = x * 2
        return y, y.numpy(), x.numpy()

    compiled = thunder.jit(program)
    for _ in range(2):
        x = torch.ones(3)
        tensor, array, given = compiled(x)
        assert array.ctypes.data == tensor.data_ptr()
        assert given.ctypes.data == x.data_ptr()


def test_array_of_a_tensor_that_requires_grad_raises_as_in_eager() -> None:
    with pytest.raises(RuntimeError, match="Can't call numpy"):
        thunder.jit(lambda x: (x * 2).numpy())(torch.ones(2, requires_grad=True))


def writes_to_the_array(x: Tensor) -> Any:
    array = (x * 2).numpy()
    array += 1
    return array


def writes_to_the_tensor(x: Tensor) -> Any:
    y = x * 2
    array = y.numpy()
    y.add_(1)
    return array


def returns_a_part(x: Tensor) -> Any:
    return (x * 2).numpy()[1:]


@pytest.mark.parametrize("program", [writes_to_the_array, writes_to_the_tensor, returns_a_part])
def test_memory_that_would_not_be_shared_is_left_to_eager(program: Callable[[Tensor], Any]) -> None:
    ours, theirs = torch.ones(3), torch.ones(3)
    with pytest.warns(RecompileWarning, match="NumPy array"):
        found = thunder.jit(program)(ours)
    for result, expected in zip(tree_leaves(found), tree_leaves(program(theirs)), strict=True):
        assert torch.equal(torch.as_tensor(result), torch.as_tensor(expected))
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", ["numpy", "a text that is looked at"])
def test_arrays_and_texts_are_refused_if_values_are_refused(name: str) -> None:
    with pytest.raises(DataDependent):
        thunder.jit(PROGRAMS[name], data_dependent="error")(torch.ones(2))


OUTSIDE_ARRAY = np.ones(2, dtype=np.float32)
ON_OUTSIDE_ARRAY = torch.from_numpy(OUTSIDE_ARRAY)


def write_to_tensor_of_new_array(x: Tensor) -> Any:
    array = np.ones(2, dtype=np.float32)
    torch.as_tensor(array).add_(x)
    return array.tolist()


def write_to_one_of_two_tensors(x: Tensor) -> Any:
    array = np.ones(2, dtype=np.float32)
    tensor, alias = torch.from_numpy(array), torch.from_numpy(array)
    tensor.add_(x)
    return alias * 1


def write_to_new_array(x: Tensor) -> Any:
    array = np.ones(2, dtype=np.float32)
    doubled = torch.from_numpy(array) * 2
    array[0] = 7
    return doubled + x


def write_to_copied_array(x: Tensor) -> Any:
    array = np.ones(2, dtype=np.float32)
    tensor = torch.tensor(array)
    array[0] = 7
    return tensor + x


def write_to_tensor_of_bytes(x: Tensor) -> Any:
    memory = bytearray(2)
    torch.frombuffer(memory, dtype=torch.uint8).add_(1)
    return x * memory[0]


def write_to_tensor_of_outside_array(x: Tensor) -> Any:
    torch.from_numpy(OUTSIDE_ARRAY).add_(x)
    return float(OUTSIDE_ARRAY[0])


def write_to_outside_tensor(x: Tensor) -> Any:
    ON_OUTSIDE_ARRAY.add_(x)
    return float(OUTSIDE_ARRAY[0])


class Marked(torch.Tensor):
    """A subclass whose instances C code makes."""


def write_to_legacy_tensor(make: Callable[[Any], Tensor]) -> Callable[[Tensor], Any]:
    def program(x: Tensor) -> Any:
        array = np.ones(2, dtype=np.float32)
        tensor = make(array)
        tensor.add_(x)
        return tensor * 2, array.tolist()

    program.__name__ = f"write_to_legacy_tensor_of_{getattr(make, '__name__', make)}"
    return program


def make_like_another(array: Any) -> Tensor:
    return torch.zeros(1).new(array)


LEGACY = map(write_to_legacy_tensor, (torch.Tensor, torch.FloatTensor, Marked, make_like_another))
SHARING: tuple[Callable[[Tensor], Any], ...] = (
    *(write_to_tensor_of_new_array, write_to_one_of_two_tensors, write_to_new_array, write_to_copied_array),
    *(write_to_tensor_of_bytes, write_to_tensor_of_outside_array, write_to_outside_tensor),
    *LEGACY,
)


@pytest.mark.parametrize("program", SHARING, ids=lambda program: program.__name__)
def test_writes_to_memory_of_tensors_and_buffers_run_in_eager(program: Callable[[Tensor], Any]) -> None:
    compiled = thunder.jit(program)
    results = []
    for function in (program, compiled):
        OUTSIDE_ARRAY[:] = 1
        with nullcontext() if function is program else pytest.warns(RecompileWarning):
            results.append(repr([function(torch.ones(2)) for _ in range(2)]))
    assert results[0] == results[1]


def test_legacy_tensor_of_an_outside_array_is_an_input() -> None:
    numbers = np.ones(2, dtype=np.float32)
    compiled = thunder.jit(lambda x: torch.Tensor(numbers).add_(x) * 2)
    for _ in range(2):
        before = numbers.copy()
        assert compiled(torch.ones(2)).tolist() == ((before + 1) * 2).tolist()
        assert numbers.tolist() == (before + 1).tolist()
    assert thunder.cache_misses(compiled) == 1
