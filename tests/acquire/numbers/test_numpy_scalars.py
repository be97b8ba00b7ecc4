"""Random NumPy scalars as arguments of PyTorch's functions: results, errors and the number of programs match eager."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import thunder_core as thunder
from tests.same import assert_same

Program = Callable[[Tensor], Any]
CALLS = 4
X = torch.arange(1.0, 5.0)


@pytest.fixture(autouse=True)
def restored_generators() -> Iterator[None]:
    """Restore the generators of the process."""
    states = np.random.get_state(), torch.get_rng_state()
    yield
    np.random.set_state(states[0])
    torch.set_rng_state(states[1])


def scalar() -> Any:
    return np.random.randint(2, 5, size=1)[0]


def fraction() -> Any:
    return np.random.uniform(size=1)[0]


def results(program: Program) -> list[Any]:
    np.random.seed(0)
    torch.manual_seed(0)
    return [program(X) for _ in range(CALLS)]


ONE_PROGRAM: dict[str, Program] = {
    "function of C": lambda x: torch.add(x, fraction()),
    "keyword of a function of C": lambda x: torch.add(x, x, alpha=fraction()),
    "function of a module of C": lambda x: torch.special.xlogy(x, fraction()),
    "function in Python": lambda x: torch.nn.functional.leaky_relu(-x, fraction()),
    "method of a tensor": lambda x: x.mul(fraction()),
    "unbound method of tensors": lambda x: torch.Tensor.mul(x, fraction()),
    "operation of ATen": lambda x: torch.ops.aten.mul.Tensor(x, fraction()),
    "fill value": lambda x: torch.full((4,), fraction()) + x,
    "seed of the process": lambda x: (torch.manual_seed(scalar()), x + torch.rand(4))[1],
}


@pytest.mark.parametrize("name", ONE_PROGRAM)
def test_one_program_serves_all_scalars(name: str) -> None:
    program = ONE_PROGRAM[name]
    expected, compiled = results(program), thunder.jit(program)
    assert_same(results(compiled), expected)
    assert thunder.cache_misses(compiled) == 1


OF_OTHER_OBJECTS: dict[str, Program] = {
    "count in a size": lambda x: x * x.shape.count(scalar()),
    "item of a size": lambda x: x * x[None].shape.__getitem__(scalar() % 2),
    "member of a size": lambda x: x * x.shape.__contains__(scalar()),
}


@pytest.mark.parametrize("name", OF_OTHER_OBJECTS)
def test_methods_of_other_objects_match_eager(name: str) -> None:
    program = OF_OTHER_OBJECTS[name]
    expected = results(program)
    assert_same(results(thunder.jit(program)), expected)


REFUSED: dict[str, Program] = {
    "seed of a generator": lambda x: torch.Generator().manual_seed(scalar()).initial_seed() * x,
    "unbound method of generators": lambda x: torch.Generator.manual_seed(torch.Generator(), scalar()).get_state(),
    "value of a storage": lambda x: x * torch.UntypedStorage(3).fill_(scalar())[0],
}


@pytest.mark.parametrize("name", REFUSED)
def test_methods_that_refuse_scalars_raise_as_in_eager(name: str) -> None:
    program = REFUSED[name]
    with pytest.raises((TypeError, RuntimeError)) as expected:
        results(program)
    with pytest.raises(expected.type) as raised:
        results(thunder.jit(program))
    assert str(raised.value) == str(expected.value)
