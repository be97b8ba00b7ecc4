"""The watch of a rank: it finds ranks that failed or do not respond, by their signs of life in the store."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch.distributed as dist

from thunder_core.workflow.pipeline.ranks import watch as watch_module
from thunder_core.workflow.pipeline.ranks.stalls import STALL_TIME_LIMIT, RankState, own_state
from thunder_core.workflow.pipeline.ranks.watch import ALIVE, SIGN_TIME_LIMIT, Watch, report_failure
from thunder_core.workflow.pipeline.request.launch import Launch


def watches(size: int = 2) -> tuple[Any, list[Watch]]:
    store = dist.HashStore()
    return store, [Watch(Launch(rank, size, rank), store, lambda: False) for rank in range(size)]


def test_rank_that_responds_is_well() -> None:
    store, (first, second) = watches()
    for number in range(5):
        store.set(f"{ALIVE}/1", str(number))
        assert first.failure_of_others(number * SIGN_TIME_LIMIT) is None
        store.set(f"{ALIVE}/0", str(number))
        assert second.failure_of_others(number * SIGN_TIME_LIMIT) is None


def test_silent_rank_has_failed_for_all_ranks() -> None:
    _, (first, second) = watches()
    assert first.failure_of_others(0) is None
    assert first.failure_of_others(SIGN_TIME_LIMIT) is None
    failure = first.failure_of_others(SIGN_TIME_LIMIT + 1)
    assert failure is not None
    assert "rank 1 failed: it has not responded for 40 seconds" in str(failure)
    assert str(second.failure_of_others(0)) == str(failure)  # it ends, too, if it responds again


def test_rank_that_ended_is_not_silent() -> None:
    _, (first, second) = watches()
    second.end()
    assert first.failure_of_others(0) is None
    assert first.failure_of_others(2 * SIGN_TIME_LIMIT) is None


def test_ranks_other_than_the_first_watch_the_first_alone() -> None:
    _, (_, second, _) = watches(3)
    second.failure_of_others(0)
    assert set(second.signs) == {0}


def stand(store: Any, second: float, marks: int = 0, step: str = "step", line: str = "model.py:3") -> None:
    """The second rank reports its state, after a number of seconds of computation."""
    store.set(f"{ALIVE}/1", f"{second} {RankState(second, marks, step, line).text()}")


def waiting(monkeypatch: pytest.MonkeyPatch, *, alone: bool = False) -> tuple[Any, Watch]:
    """The watch of a first rank that waits."""
    store, (first, _) = watches()
    monkeypatch.setattr(watch_module, "own_state", lambda: RankState(1.0, 5, "validate", "link.py:7"))
    first.is_alone = lambda: alone
    return store, first


@pytest.mark.parametrize(
    ("busy", "progresses", "alone", "found"),
    [
        (True, False, False, True),
        (True, True, False, False),  # a long compilation or measurement
        (False, False, False, False),  # both wait
        (True, False, True, False),  # the first rank computes alone, so the second rank waits for it by right
    ],
)
def test_rank_that_computes_without_progress_while_another_waits_is_in_a_loop(
    monkeypatch: pytest.MonkeyPatch, busy: bool, progresses: bool, alone: bool, found: bool
) -> None:
    store, first = waiting(monkeypatch, alone=alone)
    failure = None
    for now in range(0, int(STALL_TIME_LIMIT) + 60, 20):
        stand(store, 0.9 * now if busy else 0.001 * now, now // 100 if progresses else 0)
        failure = failure or first.failure_of_others(now)
    assert (failure is not None) == found
    if failure is not None:
        assert "rank 1 failed: it has computed for 600 seconds without progress in the step `step`" in str(failure)
        assert "model.py:3, while rank 0 waits in the step `validate`, at link.py:7" in str(failure)


def test_rank_that_computed_until_now_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ranks compile one region for long; the first is done a little earlier."""
    store, first = waiting(monkeypatch)
    for now in range(0, int(STALL_TIME_LIMIT) + 300, 20):
        monkeypatch.setattr(watch_module, "own_state", lambda now=now: RankState(min(now, 500.0), 5, "build", ""))
        stand(store, now)
        assert first.failure_of_others(now) is None


@pytest.mark.usefixtures("group_of_one")
def test_collective_is_progress() -> None:
    before = own_state()
    dist.barrier()
    after = own_state()
    assert before is not None
    assert after is not None
    assert after.progress > before.progress


def test_error_of_another_rank_interrupts_the_main_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_module, "SIGN_PERIOD", 0.01)
    store, (first, _) = watches()
    first.start()
    report_failure(store, 1, "the disk is full")
    with pytest.raises(KeyboardInterrupt):
        time.sleep(10)
    first.end()
    assert "rank 1 failed: the disk is full" in str(first.failure)


def test_process_ends_if_the_rank_cannot_be_interrupted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("SIGN_PERIOD", "END_TIME_LIMIT"):
        monkeypatch.setattr(watch_module, name, 0.01)
    statuses: list[int] = []
    monkeypatch.setattr(watch_module.os, "_exit", statuses.append)
    store, (first, _) = watches()
    report_failure(store, 1, "the disk is full")
    thread = threading.Thread(target=first.start)  # not the main thread, which is not interrupted
    thread.start()
    thread.join()
    deadline = time.monotonic() + 5
    while not statuses and time.monotonic() < deadline:
        time.sleep(0.01)
    assert statuses == [first.failure and first.failure.status]
    assert "error [TH0703] rank 1 failed: the disk is full" in capsys.readouterr().err
