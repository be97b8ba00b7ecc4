"""SciPy's `linear_sum_assignment` in a program: an operation of the trace, or a read of values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

import thunder_core as thunder

Program = Callable[[Tensor, Tensor], Any]


def costs(seed: int, rows: int = 4, columns: int = 3) -> tuple[Tensor, Tensor]:
    """Return points whose distances are the costs."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(rows, 2, generator=generator), torch.rand(columns, 2, generator=generator)


def matched(x: Tensor, y: Tensor) -> tuple[np.ndarray, np.ndarray]:
    with torch.no_grad():
        return linear_sum_assignment(torch.cdist(x, y))


def loss(x: Tensor, y: Tensor) -> Tensor:
    rows, columns = (torch.as_tensor(indices, dtype=torch.int64) for indices in matched(x, y))
    return (x[rows] - y[columns]).abs().sum()


def loss_of_pairs(x: Tensor, y: Tensor) -> Tensor:
    rows, columns = matched(x, y)
    return (x[torch.from_numpy(rows)] - y[torch.tensor(columns)]).abs().sum()


def best_scores(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    rows, columns = linear_sum_assignment(cost_matrix=x @ y.T, maximize=True)
    return torch.as_tensor(rows), torch.as_tensor(columns, dtype=torch.int32)


@pytest.mark.parametrize("program", [loss, loss_of_pairs, best_scores], ids=lambda program: program.__name__)
def test_one_program_matches_other_values(program: Program) -> None:
    compiled = thunder.jit(program, executors=("torch",))
    for seed in range(5):
        torch.testing.assert_close(compiled(*costs(seed)), program(*costs(seed)), rtol=0, atol=0)
    assert thunder.cache_misses(compiled) == 1
    assert "linear_sum_assignment(" in str(thunder.last_traces(compiled)[-1])


def test_the_numbers_of_rows_and_columns_are_symbolic() -> None:
    compiled = thunder.jit(loss, executors=("torch",), cache="symbolic values")
    for seed, rows, columns in ((0, 5, 3), (1, 6, 3), (2, 9, 4), (3, 3, 3), (4, 2, 5), (5, 3, 7)):
        torch.testing.assert_close(compiled(*costs(seed, rows, columns)), loss(*costs(seed, rows, columns)))
    assert thunder.cache_misses(compiled) == 2  # fewer rows than columns, or not


def test_gradients_match_eager() -> None:
    compiled = thunder.jit(loss, executors=("torch",))
    for seed in range(3):
        found, expected = ([tensor.requires_grad_() for tensor in costs(seed)] for _ in range(2))
        compiled(*found).backward()
        loss(*expected).backward()
        torch.testing.assert_close([tensor.grad for tensor in found], [tensor.grad for tensor in expected])
    assert thunder.last_backward_reason(compiled) == ""


def item(x: Tensor, y: Tensor) -> Tensor:
    return x * int(matched(x, y)[1][0])


def length(x: Tensor, y: Tensor) -> Tensor:
    return x * len(matched(x, y)[0])


def pairs(x: Tensor, y: Tensor) -> list[Tensor]:
    return [x[row] - y[column] for row, column in zip(*matched(x, y), strict=True)]


def listed(x: Tensor, y: Tensor) -> Tensor:
    return torch.tensor(matched(x, y)[1].tolist())


def joined(x: Tensor, y: Tensor) -> Tensor:
    return torch.from_numpy(np.concatenate(matched(x, y)))


def stacked(x: Tensor, y: Tensor) -> Tensor:
    return torch.as_tensor(np.array(matched(x, y)))


def shifted(x: Tensor, y: Tensor) -> Tensor:
    rows, columns = matched(x, y)
    return torch.as_tensor(rows + 1) * torch.as_tensor(columns).sum()


def written(x: Tensor, y: Tensor) -> Tensor:
    rows, columns = matched(x, y)
    columns[0] = 7
    rows += 1
    return torch.as_tensor(columns) + torch.as_tensor(rows)


def written_as_tensor(x: Tensor, y: Tensor) -> tuple[Tensor, int]:
    _, columns = matched(x, y)
    tensor = torch.from_numpy(columns)
    tensor.add_(1)
    return tensor * 2, int(columns[0])


def returned(x: Tensor, y: Tensor) -> tuple[Any, Tensor]:
    return matched(x, y), x + y.sum()


def stored(x: Tensor, y: Tensor) -> Tensor:
    STORE["columns"] = matched(x, y)[1]
    return x * 2


def shown(x: Tensor, y: Tensor) -> tuple[str, Tensor]:
    return f"{matched(x, y)[1]}", x * 2


def indexes(x: Tensor, y: Tensor) -> Tensor:
    rows, columns = matched(x, y)
    return x[rows] - y[columns]


def decides(x: Tensor, y: Tensor) -> Tensor:
    return x * 2 if 0 in matched(x, y)[1][:1] else x * 3


def catches_everything(x: Tensor, y: Tensor) -> Tensor:
    columns = matched(x, y)[1]
    try:
        last = int(columns[-1])
    except:  # noqa: E722
        return x
    return x * last


STORE: dict[str, Any] = {}
READERS = (
    *(item, length, pairs, listed, joined, stacked, shifted, written, written_as_tensor, returned, stored, shown),
    *(indexes, decides, catches_everything),
)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("program", READERS, ids=lambda program: program.__name__)
def test_other_reads_of_the_indices_match_eager(program: Program) -> None:
    compiled = thunder.jit(program, executors=("torch",))
    for seed in (0, 1, 2, 0):
        STORE.clear()
        expected, stored_by_eager = program(*costs(seed)), dict(STORE)
        STORE.clear()
        found = compiled(*costs(seed))
        if program is shown:
            assert found[0] == expected[0]
        else:
            torch.testing.assert_close(found, expected, rtol=0, atol=0)
        np.testing.assert_equal(STORE, stored_by_eager)


def with_gradient(x: Tensor, y: Tensor) -> Tensor:
    return torch.as_tensor(linear_sum_assignment(torch.cdist(x.requires_grad_(), y))[0])


def with_nan(x: Tensor, y: Tensor) -> Tensor:
    return torch.as_tensor(linear_sum_assignment(torch.cdist(x, y) * float("nan"))[0])


def of_a_vector(x: Tensor, y: Tensor) -> Tensor:
    return torch.as_tensor(linear_sum_assignment(x[:, 0] + y.sum())[0])


def of_another_dtype(x: Tensor, y: Tensor) -> Tensor:
    return torch.as_tensor(linear_sum_assignment(torch.cdist(x, y).bfloat16())[0])


def of_a_wrong_call(x: Tensor, y: Tensor) -> Tensor:
    return torch.as_tensor(linear_sum_assignment(torch.cdist(x, y), minimize=True)[0])


@pytest.mark.parametrize(
    "program",
    [with_gradient, with_nan, of_a_vector, of_another_dtype, of_a_wrong_call],
    ids=lambda program: program.__name__,
)
def test_errors_are_those_of_eager(program: Program) -> None:
    with pytest.raises(Exception, match=r".") as expected:
        program(*costs(0))
    with pytest.raises(type(expected.value)) as found:
        thunder.jit(program, executors=("torch",))(*costs(0))
    assert str(found.value) == str(expected.value)


def catches_the_error(x: Tensor, y: Tensor) -> Tensor:
    try:
        return torch.as_tensor(matched(x, y)[1])
    except ValueError:
        return torch.zeros(2)


def ignores_the_indices(x: Tensor, y: Tensor) -> Tensor:
    matched(x, y)
    return x * 2


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_error_in_a_later_call_is_that_of_eager() -> None:
    x, y = costs(0)
    caught, raised = (
        thunder.jit(program, executors=("torch",)) for program in (catches_the_error, ignores_the_indices)
    )
    for program in (caught, raised):
        program(x, y)
    torch.testing.assert_close(caught(x * float("nan"), y), torch.zeros(2))
    with pytest.raises(ValueError, match="invalid numeric entries"):
        raised(x * float("nan"), y)
