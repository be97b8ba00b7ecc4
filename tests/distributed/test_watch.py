"""The watch of a rank: it finds ranks that failed or do not respond, by their signs of life in the store."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch.distributed as dist

from thunder_core.workflow.pipeline.ranks import watch as watch_module
from thunder_core.workflow.pipeline.ranks.watch import ALIVE, SILENCE, Watch, report_failure
from thunder_core.workflow.pipeline.request.launch import Launch


def watches(size: int = 2) -> tuple[Any, list[Watch]]:
    store = dist.HashStore()
    return store, [Watch(Launch(rank, size, rank), store) for rank in range(size)]


def test_rank_that_responds_is_well() -> None:
    store, (first, second) = watches()
    for number in range(5):
        store.set(f"{ALIVE}/1", str(number))
        assert first.failure_of_others(number * SILENCE) is None
        store.set(f"{ALIVE}/0", str(number))
        assert second.failure_of_others(number * SILENCE) is None


def test_silent_rank_has_failed_for_all_ranks() -> None:
    _, (first, second) = watches()
    assert first.failure_of_others(0) is None
    assert first.failure_of_others(SILENCE) is None
    failure = first.failure_of_others(SILENCE + 1)
    assert failure is not None
    assert "rank 1 failed: it has not responded for 40 seconds" in str(failure)
    assert second.failure_of_others(0) is None  # its own failure


def test_rank_that_ended_is_not_silent() -> None:
    _, (first, second) = watches()
    second.end()
    assert first.failure_of_others(0) is None
    assert first.failure_of_others(2 * SILENCE) is None


def test_ranks_other_than_the_first_watch_the_first_alone() -> None:
    _, (_, second, _) = watches(3)
    second.failure_of_others(0)
    assert set(second.signs) == {0}


def test_error_of_another_rank_interrupts_the_main_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_module, "PERIOD", 0.01)
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
    for name in ("PERIOD", "GRACE"):
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
