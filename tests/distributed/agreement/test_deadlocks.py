"""A rank that waits for a rank that waits elsewhere or has ended: both end soon, with an error that names the line."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest

from tests.distributed.agreement import deadlocks
from tests.distributed.preload import fork_server
from thunder_core.foundation.errors import CollectivesDiffer

TIME_LIMIT = 100.0  # seconds in which all ranks end, also on a busy machine
IN_BARRIER, IN_PROGRAM = "waits in `barrier`", "waits in `all_reduce"
FULL = re.compile(r"^error \[TH0813\] rank \d waits .*\n  fix: ", re.MULTILINE)
CASES = {  # the rank that is ahead, and what its error says of the other rank
    "other_in_eager_collective": (0, IN_BARRIER),
    "other_in_a_later_collective": (0, "has left this collective, and waits in a later `barrier` at"),
    "other_in_another_group": (1, IN_BARRIER),
    "other_in_a_program_of_another_group": (0, IN_PROGRAM),
    "other_in_another_known_program": (1, "calls `"),
    "other_has_raised_in_an_exception_handler": (0, IN_BARRIER),
    "both_in_eager_pytorch": (0, IN_BARRIER),
    "both_in_eager_pytorch_of_two_groups": (0, "waits in `barrier` of another process group at"),
    "other_waits_for_a_work": (0, IN_PROGRAM),
    "other_has_ended": (1, "has ended"),
    "other_has_raised": (0, "has ended"),
}


def run(case: str, ahead: int, folder: Path, size: int = 2) -> list[tuple[int, str]]:
    """Run a case on several ranks; return the status and the errors of each rank."""
    context = fork_server()
    processes = [
        context.Process(target=deadlocks.main, args=(case, ahead, rank, size, str(folder))) for rank in range(size)
    ]
    for process in processes:
        process.start()
    end = time.monotonic() + TIME_LIMIT
    for process in processes:
        process.join(max(end - time.monotonic(), 0))
        process.kill()
        process.join()
    return [(process.exitcode or 0, (folder / f"errors-{rank}").read_text()) for rank, process in enumerate(processes)]


@pytest.mark.parametrize("case", CASES)
def test_rank_that_is_ahead_ends_with_an_error(case: str, tmp_path: Path) -> None:
    ahead, told = CASES[case]
    ends = run(case, ahead, tmp_path)
    status, text = ends[ahead]
    assert status in (1, CollectivesDiffer.status)  # not killed
    assert "[TH0813]" in text
    assert "deadlocks.py:" in text
    if told == "has ended":
        assert told in text
        return
    status, other = ends[1 - ahead]
    assert told in text or told in other  # the rank that finds the deadlock first names the wait of the other rank
    assert status in (1, CollectivesDiffer.status)
    assert "[TH0813]" in other
    most = 2 if case == "other_in_a_program_of_another_group" else 1  # each group has an error
    assert 1 <= sum(FULL.search(printed) is not None for printed in (text, other)) <= most


def test_collective_of_another_size_in_eager_pytorch_names_the_line_of_each_rank(tmp_path: Path) -> None:
    """Gloo aborts a process that receives more bytes than its collective has."""
    start = time.monotonic()
    ends = run("other_in_eager_collective_of_the_same_kind", 0, tmp_path)
    assert time.monotonic() - start < TIME_LIMIT
    assert sorted(status for status, _ in ends) == [-signal.SIGABRT, 1]
    assert all("deadlocks.py" in text for _, text in ends)
    assert "in steps" in ends[0][1]
    assert "in other_in_eager_collective_of_the_same_kind" in ends[1][1]


def test_details_of_pytorch_name_collectives_of_the_same_kind(tmp_path: Path) -> None:
    """With TORCH_DISTRIBUTED_DEBUG=DETAIL, PyTorch compares each collective, also those of programs."""
    ends = run("other_in_eager_collective_of_the_same_kind_with_details", 0, tmp_path)
    assert [status for status, _ in ends] == [1, 1]
    assert all("Detected mismatch between collectives on ranks" in text for _, text in ends)
    assert "in total" in ends[0][1]
    assert "in other_in_eager_collective_of_the_same_kind" in ends[1][1]


def test_late_rank_is_no_deadlock(tmp_path: Path) -> None:
    assert [status for status, _ in run("late", 0, tmp_path)] == [0, 0]


def test_late_rank_whose_thread_waits_in_another_group_is_no_deadlock(tmp_path: Path) -> None:
    assert [status for status, _ in run("late_in_eager_pytorch", 0, tmp_path)] == [0, 0]


def test_rank_that_waits_for_a_late_rank_of_another_group_is_no_deadlock(tmp_path: Path) -> None:
    """The second rank waits in a barrier for the first rank, which waits for the third rank in a program."""
    assert run("rank_of_another_group_is_late", 0, tmp_path, 3) == [(0, "")] * 3
