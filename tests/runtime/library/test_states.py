"""External C objects that the program reads are guarded by their state, and writes to them are refused."""

from __future__ import annotations

import array
import datetime as dt
import re
import types
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import thunder_core as thunder
from thunder_core.foundation.errors import CannotReplay

HELD: dict[str, Any] = {}
# A program of a tensor and an object, and objects that differ in state alone.
PROGRAMS: dict[str, tuple[Callable[[Tensor, Any], Any], tuple[Any, Any]]] = {
    "a scalar": (lambda x, external: x * external, (np.float32(2), np.float32(3))),
    "an index": (lambda x, external: x[: int(external)], (np.int64(2), np.int64(1))),
    "an array": (lambda x, external: x * float(external.sum()), (np.ones(2), np.ones(2) * 2)),
    "a dtype": (lambda x, external: x + np.zeros(2, external).nbytes, (np.dtype("f4"), np.dtype("f8"))),
    "a decimal": (lambda x, external: x * float(external), (Decimal(2), Decimal(3))),
    "a time": (lambda x, external: x * external.total_seconds(), (dt.timedelta(1), dt.timedelta(2))),
    "a byte array": (lambda x, external: x * external[0], (bytearray(b"a"), bytearray(b"b"))),
    "an array of Python's": (lambda x, external: x * external[0], (array.array("i", [1]), array.array("i", [2]))),
    "a view of memory": (lambda x, external: x * external[0], (memoryview(b"a"), memoryview(b"b"))),
    "a pattern": (lambda x, external: x * bool(external.match("a")), (re.compile("a"), re.compile("b"))),
    "a proxy": (
        lambda x, external: x * external["a"],
        (types.MappingProxyType({"a": 1}), types.MappingProxyType({"a": 2})),
    ),
    "a view of a dict": (lambda x, external: x * list(external)[0], ({"a": 1}.values(), {"a": 2}.values())),  # noqa: RUF015
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_another_state_is_another_program(name: str) -> None:
    program, states = PROGRAMS[name]
    given, read = thunder.jit(program), thunder.jit(lambda x: program(x, HELD["one"]))
    x = torch.ones(2)
    for state in (*states, *states):
        HELD["one"] = state
        wanted = program(x, state)
        torch.testing.assert_close(given(x, state), wanted, rtol=0, atol=0)
        torch.testing.assert_close(read(x), wanted, rtol=0, atol=0)
    assert thunder.cache_misses(given) == thunder.cache_misses(read) == 2


@pytest.mark.parametrize("options", [{}, {"dtype": torch.float32}, {"requires_grad": True}])
def test_copy_of_an_array_from_outside_is_a_copy_of_an_input(options: Any) -> None:
    def program(array: Any, x: Tensor) -> Any:
        copied = torch.tensor(array, **options)
        return copied.detach().add_(1) * x, copied

    compiled, x = thunder.jit(program), torch.ones(3)
    for step in range(3):
        array = np.arange(3.0) + step
        found, wanted = compiled(array, x), program(array, x)
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
        assert found[1].requires_grad == wanted[1].requires_grad
        assert array.tolist() == [step, step + 1, step + 2]
    assert thunder.cache_misses(compiled) == 1


@pytest.mark.parametrize("make", [torch.from_numpy, torch.as_tensor])
def test_a_tensor_on_an_array_from_outside_is_an_input(make: Callable[[Any], Tensor]) -> None:
    def program(array: Any, x: Tensor) -> Any:
        assert isinstance(array, np.ndarray)
        tensor = make(array)
        tensor.add_(1)
        return tensor * x, tensor

    compiled, x = thunder.jit(program), torch.ones(3)
    for step in range(3):
        ours, theirs = np.arange(3.0) + step, np.arange(3.0) + step
        found, wanted = compiled(ours, x), program(theirs, x)
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
        assert np.array_equal(ours, theirs)
        assert found[1].data_ptr() == ours.ctypes.data
    assert thunder.cache_misses(compiled) == 1


def test_a_tensor_on_an_array_of_the_program_is_created_at_each_call() -> None:
    def program() -> Tensor:
        return torch.from_numpy(np.zeros(2)).add_(1)

    compiled = thunder.jit(program)
    for _ in range(3):
        assert torch.equal(compiled().mul_(3), program() * 3)


WRITERS: dict[str, Callable[[Any], Any]] = {
    "an item": lambda external: external.__setitem__(0, 5),
    "a method": lambda external: external.sort(),
    "a function": lambda external: np.copyto(external, 7),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_write_to_an_array_from_outside_is_refused_and_undone(name: str) -> None:
    external = np.array([3.0, 1.0])
    with pytest.raises(CannotReplay, match=r"writes to args\[1\]"):
        fast = thunder.jit(lambda x, external: (WRITERS[name](external), x + 1), data_dependent="error")
        fast(torch.ones(2), external)
    assert external.tolist() == [3.0, 1.0]
