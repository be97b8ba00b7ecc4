"""Stacks of threads that stand still and of threads that run."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Iterator

import pytest

from thunder_core.backend.parallel import deadlocks, thread_stacks
from thunder_core.backend.parallel.thread_stacks import STILL, StackLine, ThreadWatch, frames_outwards
from thunder_core.backend.parallel.waits import innermost_frame

SOURCE = "def waits(started, ended):\n    started.set()\n    ended.acquire()\n"


def test_stack_of_a_waiting_thread_equals_its_frames() -> None:
    started, ended = threading.Event(), threading.Lock()
    namespace: dict[str, object] = {}
    exec(compile(SOURCE, "/tmp/waits.py", "exec"), namespace)
    thread = threading.Thread(target=namespace["waits"], args=(started, ended))  # type: ignore[arg-type]
    ended.acquire()
    thread.start()
    started.wait()
    assert thread.ident is not None
    watch = ThreadWatch()
    assert thread.ident not in watch.stacks()
    while thread.ident not in (stacks := watch.stacks()):
        time.sleep(STILL / 4)
    frames = [
        StackLine(frame.f_code.co_filename, number, frame.f_code.co_name)
        for frame, number in traceback.walk_stack(sys._current_frames()[thread.ident])
    ]
    ended.release()
    thread.join()
    assert stacks[thread.ident] == frames
    assert frames[0] == StackLine("/tmp/waits.py", 3, "waits")
    assert thread.ident not in watch.stacks()


def test_calls_in_succession_are_no_proof_that_a_thread_stands_still() -> None:
    watch = ThreadWatch()
    for _ in range(10):
        assert threading.get_ident() not in watch.stacks()


def test_frame_of_a_thread_that_has_left_its_line() -> None:
    line = StackLine(__file__, 1, "test")
    assert innermost_frame(threading.get_ident(), line) is None
    assert innermost_frame(0, line) is None


def test_thread_that_moves_has_no_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread in the same frame, but at other instructions, runs."""

    def steps() -> Iterator[int]:
        yield 1
        yield 2
        yield 3

    steps_of_a_thread, watch = steps(), ThreadWatch()
    monkeypatch.setattr(thread_stacks.sys, "_current_frames", lambda: {7: steps_of_a_thread.gi_frame})  # type: ignore[attr-defined]
    for _ in range(3):
        next(steps_of_a_thread)
        assert not watch.stacks()
        time.sleep(STILL)
    assert list(watch.stacks()) == [7]


def test_frames_from_the_inside_to_the_outside() -> None:
    frame = sys._getframe()
    assert frames_outwards(frame) == [each for each, _ in traceback.walk_stack(frame)]


def test_no_thread_is_looked_at_without_a_program_and_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame that is read keeps its variables alive for a moment, and other code may wait for them to be freed."""
    monkeypatch.setattr(deadlocks, "waits", pytest.fail)
    deadlocks.DeadlockWatch().look([])
