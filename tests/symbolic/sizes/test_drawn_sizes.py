"""Arrays of NumPy whose sizes vary: the prologue draws or creates them with the sizes of each call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import thunder_core as thunder


def drawn_for_a_number(x: Tensor, count: int) -> Tensor:
    return x * torch.tensor(np.random.rand(count)).sum()


def drawn_for_a_size(x: Tensor, _: int) -> Tensor:
    return x * torch.tensor(np.random.rand(x.shape[0]))


def drawn_for_a_computed_size(x: Tensor, _: int) -> Tensor:
    return torch.cat([x, x]) + torch.from_numpy(np.random.normal(size=2 * x.shape[0]))


def spans(shape: tuple[int, int], length: int) -> Any:
    """Return a mask of random spans, as SpecAugment does: C code needs the sizes."""
    share = np.random.rand(1).item()
    mask = np.zeros(shape, dtype=bool)
    for row in range(shape[0]):
        start = np.random.choice(np.arange(shape[1] - length))
        mask[row, start : start + length] = share <= 1
    return mask


def masked(x: Tensor, _: int) -> Tensor:
    rows = x.expand(3, -1).clone()
    rows[torch.tensor(spans((3, rows.shape[1]), 2))] = 0
    return rows.cumsum(1)


@pytest.mark.parametrize("program", [drawn_for_a_number, drawn_for_a_size, drawn_for_a_computed_size, masked])
def test_random_arrays_of_all_sizes_have_one_program(program: Callable[[Tensor, int], Tensor]) -> None:
    compiled = thunder.jit(program, executors=("torch",))
    for size in (5, 7, 11, 6, 20):
        x = torch.linspace(1, 2, size, requires_grad=True)
        outcomes = []
        for call in (program, compiled):
            np.random.seed(size)
            x.grad = None
            result = call(x, size)
            result.square().sum().backward()  # type: ignore[no-untyped-call]
            outcomes.append((result, x.grad, np.random.rand()))
        torch.testing.assert_close(outcomes[1], outcomes[0])
    assert thunder.cache_misses(compiled) <= 3  # for constant sizes, for symbolic sizes, for symbolic sizes of arrays


def positions(x: Tensor) -> Tensor:
    return x[torch.as_tensor(np.arange(x.shape[0]))]


def spaced(x: Tensor) -> Tensor:
    return x + torch.tensor(np.linspace(0, 0.5, x.shape[0])).float()


def written_to(x: Tensor) -> Tensor:
    table = np.zeros((x.shape[0], 2), dtype=np.float32)
    table[0] = 1
    table[-1, 1] = 3
    table += 1
    return x[:, None] + torch.from_numpy(table)


def of_a_shape(x: Tensor) -> Tensor:
    return x.masked_fill(torch.from_numpy(np.ones(x.shape, dtype=bool)), 2)


def sines(x: Tensor) -> Tensor:
    angles = np.arange(x.shape[0])[:, None] / np.power(10000, np.arange(4)[None] / 4)
    return x[:, None] + torch.from_numpy(np.sin(angles)).float()


def shuffled(x: Tensor) -> Tensor:
    order = np.arange(x.shape[0])
    np.random.shuffle(order)
    return x[torch.from_numpy(order)]


def averaged(x: Tensor) -> Tensor:
    return x + float(np.full(x.shape[0], 2.5).mean())


@pytest.mark.parametrize("program", [positions, spaced, written_to, of_a_shape, sines, shuffled, averaged])
@pytest.mark.parametrize("data_dependent", ["guard", "error"])
def test_arrays_that_are_created_for_all_sizes_have_one_program(program: Any, data_dependent: Any) -> None:
    compiled = thunder.jit(program, data_dependent=data_dependent)
    for size in (12, 9, 14, 3, 12, 21):
        outcomes = []
        for call in (program, compiled):
            np.random.seed(size)
            outcomes.append(call(torch.arange(size) * 1.0))
        assert torch.equal(outcomes[0], outcomes[1])
    assert thunder.cache_misses(compiled) <= 3  # for constant sizes, for symbolic sizes, for symbolic sizes of arrays


def test_an_array_whose_items_the_program_reads_has_a_program_for_each_size() -> None:
    def counted(x: Tensor) -> Tensor:
        for position in np.arange(x.shape[0]):
            x = x + int(position)
        return x

    compiled = thunder.jit(counted, cache="symbolic values")
    for size in (3, 5, 3, 4):
        assert torch.equal(compiled(torch.ones(size)), counted(torch.ones(size)))
    assert thunder.cache_misses(compiled) == 3


def drawn_scalar() -> Any:
    return np.random.randint(1, 9, size=1)[0]


def write_to_a_slice(x: Tensor) -> Tensor:
    x = x.clone()
    x[: drawn_scalar()] = 0
    return x


def write_to_a_part(x: Tensor) -> Tensor:
    x = x.clone()
    x[..., 1 : drawn_scalar() + 1] = 0
    return x


SCALARS: dict[str, Callable[[Tensor], Tensor]] = {
    "slice": lambda x: x[: drawn_scalar()],
    "slice of columns": lambda x: x[:, drawn_scalar() :],
    "write to a slice": write_to_a_slice,
    "write to a part": write_to_a_part,
    "shape": lambda x: torch.zeros((2, drawn_scalar())),
    "padding": lambda x: torch.nn.functional.pad(x, (0, drawn_scalar())),
    "shifts": lambda x: torch.roll(x, (drawn_scalar(),), (0,)),
    "list": lambda x: torch.tensor([drawn_scalar(), drawn_scalar()]),
    "list of indices": lambda x: x[[drawn_scalar(), drawn_scalar()]],
}


@pytest.mark.parametrize("name", SCALARS)
@pytest.mark.filterwarnings("ignore::thunder_core.foundation.errors.RecompileWarning")
def test_a_drawn_scalar_in_a_slice_or_a_container_comes_from_the_call(name: str) -> None:
    compiled, x = thunder.jit(SCALARS[name]), torch.arange(100.0).reshape(10, 10)
    for seed in range(6):
        outcomes = []
        for call in (SCALARS[name], compiled):
            np.random.seed(seed)
            outcomes.append((call(x), np.random.rand()))
        assert torch.equal(outcomes[0][0], outcomes[1][0])
        assert outcomes[0][1] == outcomes[1][1]
