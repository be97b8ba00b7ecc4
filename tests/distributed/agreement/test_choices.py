"""Ranks whose measurements differ choose the same kernels, so their programs are equal."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from tests.distributed.ranks import Ranks
from thunder_core.backend.parallel import choices
from thunder_core.backend.parallel.choices import Choices, shared_choice
from thunder_executors.packed_linear import EXECUTOR

MODULE = "tests.distributed.agreement.choices"
needs_kernel = pytest.mark.skipif(EXECUTOR.missing() is not None, reason=str(EXECUTOR.missing()))


@pytest.mark.parametrize(
    "case",
    [
        "times_of_one_rank_are_those_of_all",
        "rank_without_time_decides_for_all",
        "what_was_unknown_is_measured_later",
        "what_was_unknown_is_measured_later_without_collectives",
        "ranks_with_other_processors_choose_together",
        "rank_that_chooses_alone_does_not_wait",
    ],
)
def test_times(ranks: Ranks, case: str) -> None:
    ranks.run(MODULE, case)


@needs_kernel
@pytest.mark.parametrize("seconds", ["10 10", "10 0.0001", "0.0001 10"])
def test_programs_are_equal_if_measurements_differ(ranks: Ranks, seconds: str) -> None:
    ranks.run(MODULE, "programs_of_ranks_are_equal", seconds)


@needs_kernel
def test_rank_that_traces_later_takes_the_choices(ranks: Ranks) -> None:
    ranks.run(MODULE, "program_of_one_rank_is_the_later_program_of_the_other")


class Gone:
    """A store whose process has ended."""

    def check(self, names: list[str]) -> bool:
        raise dist.DistNetworkError("connection reset")

    def compare_set(self, name: str, expected: str, value: str) -> bytes:
        raise dist.DistNetworkError("connection reset")


def test_rank_chooses_alone_if_the_store_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = Choices(Gone())
    monkeypatch.setattr(choices, "choices_of_ranks", lambda: gone)
    monkeypatch.setattr(choices, "position_of", lambda _: 0)
    assert shared_choice("name", lambda: "own") == "own"


def test_process_without_ranks_chooses_alone() -> None:
    assert shared_choice("name", lambda: "own") == "own"
