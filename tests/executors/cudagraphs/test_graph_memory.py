"""The bound on the bytes that graphs hold, on a stand-in for recording with little memory."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

import thunder_core as thunder
from tests.executors.cudagraphs.stand_in import OnCpu, StandIn, graphs_in
from thunder_executors.cudagraphs.graph_memory import SHARE

BYTES_OF_ROW = 3 * 4 * 2  # of an input and a result


class Line(torch.nn.Module):
    """A model whose graphs hold `BYTES_OF_ROW` for each row of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(3, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self.weight).sin()


@pytest.fixture
def room_for_rows(cuda: StandIn) -> Any:
    """A function that sets the number of rows whose graphs fit."""
    gc.collect()  # graphs of other tests count as long as they live

    def set_rows(rows: int) -> StandIn:
        cuda.memory = rows * BYTES_OF_ROW * SHARE
        return cuda

    return set_rows


def compiled_line() -> tuple[Line, Any]:
    model = Line()
    return model, thunder.jit(model, executors=(OnCpu(), "torch"), cache="symbolic values")


def call(model: Line, compiled: Any, *rows: int) -> None:
    """Compare a call for each number of rows with eager."""
    with torch.no_grad():
        for number in rows:
            x = torch.randn(number, 3)
            torch.testing.assert_close(compiled(x), model(x))


def kept(compiled: Any) -> list[int]:
    """Return the rows of the graphs that a compiled model keeps."""
    (line,) = graphs_in(compiled)
    return sorted(
        next(iter(recording.buffers.values())).memory.shape[0] for recording in line.symbol.target.recordings.values()
    )


def test_graphs_that_hold_too_many_bytes_are_dropped_the_least_recently_used_first(room_for_rows: Any) -> None:
    room_for_rows(20)
    model, compiled = compiled_line()
    call(model, compiled, 2, 4, 2, 4, 4, 6, 6, 6, 8, 8)
    assert kept(compiled) == [2, 4, 6, 8], "twenty rows fit"
    call(model, compiled, 2, 5, 5, 5)
    assert kept(compiled) == [2, 5, 8], "graphs of 4 and 6 rows were used least recently"


def test_a_dropped_graph_is_captured_again_at_the_second_call(room_for_rows: Any) -> None:
    cuda = room_for_rows(9)
    model, compiled = compiled_line()
    call(model, compiled, 5, 5, 4, 4, 6, 6)
    assert kept(compiled) == [6]
    call(model, compiled, 5)
    assert (cuda.records, kept(compiled)) == (3, [6])
    call(model, compiled, 5)
    assert (cuda.records, kept(compiled)) == (4, [5])


def test_graphs_that_displace_each_other_are_not_captured_forever(room_for_rows: Any) -> None:
    """The forward and the backward of a step alternate like this if both together do not fit."""
    cuda = room_for_rows(9)
    model, compiled = compiled_line()
    call(model, compiled, *[6, 6, 5, 5] * 4)
    records = cuda.records
    call(model, compiled, *[6, 6, 5, 5] * 10)
    assert records <= cuda.records <= records + 1
    assert len(kept(compiled)) == 1, "one of both stays"


def test_graphs_of_all_models_share_the_bound_until_a_model_dies(room_for_rows: Any) -> None:
    room_for_rows(10)
    first, second = compiled_line(), compiled_line()
    call(*first, 6, 4, 6)
    call(*second, 7, 5, 7)
    assert (kept(first[1]), kept(second[1])) == ([], [7])
    del second
    gc.collect()
    call(*first, 6, 4, 6, 4)
    assert kept(first[1]) == [4, 6]


@pytest.mark.filterwarnings("ignore:a CUDA graph could not be recorded")
def test_a_graph_that_alone_holds_too_much_is_not_kept_and_drops_no_other(room_for_rows: Any) -> None:
    cuda = room_for_rows(10)
    model, compiled = compiled_line()
    call(model, compiled, 6, 4, 6, 4, 11, 11, 11)
    assert kept(compiled) == [4, 6]
    (line,) = graphs_in(compiled)
    reason = "it needs 264 bytes of its own, more than 1/16 of the GPU's memory"
    assert line.symbol.target.failed == reason
    assert cuda.records == 3


def train(model: Line, compiled: Any, *rows: int) -> None:
    """Make a training step for each number of rows."""
    for number in rows:
        x = torch.randn(number, 3)
        results = []
        for called in (compiled, model):
            model.zero_grad()
            called(x).sum().backward()
            results.append(model.weight.grad)
        torch.testing.assert_close(*results)


def test_the_pools_of_training_steps_count(room_for_rows: Any) -> None:
    """Each forward has a pool of ten rows, so that three forwards do not fit into 34 rows."""
    cuda = room_for_rows(34)
    model, compiled = compiled_line()
    cuda.pool = 10 * BYTES_OF_ROW
    train(model, compiled, *[1] * 4, *[2] * 4)
    assert cuda.own_pools == 2
    assert kept(compiled) == [1, 2]
    train(model, compiled, *[3] * 4)
    assert kept(compiled) == [2, 3]


@pytest.mark.filterwarnings("ignore:a CUDA graph could not be recorded")
def test_a_training_step_whose_pool_alone_is_too_large_has_no_graph(room_for_rows: Any) -> None:
    cuda = room_for_rows(34)
    model, compiled = compiled_line()
    cuda.pool = 35 * BYTES_OF_ROW
    train(model, compiled, *[1] * 4)
    assert kept(compiled) == []
