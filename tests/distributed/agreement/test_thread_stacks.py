"""Stacks of threads that wait and of threads that run."""

from __future__ import annotations

import sys
import threading
import traceback
from pathlib import Path

from thunder_core.backend.parallel.thread_stacks import StackLine, parsed_stacks, thread_stacks
from thunder_core.backend.parallel.waits import innermost_frame

SOURCE = "def größe(started, ended):\n    started.set()\n    ended.acquire()\n"


def test_stack_of_a_waiting_thread_equals_its_frames() -> None:
    started, ended = threading.Event(), threading.Lock()
    namespace: dict[str, object] = {}
    exec(compile(SOURCE, "/tmp/übung \U0001f600.py", "exec"), namespace)
    thread = threading.Thread(target=namespace["größe"], args=(started, ended))  # type: ignore[arg-type]
    ended.acquire()
    thread.start()
    started.wait()
    assert thread.ident is not None
    waiting = StackLine("/tmp/übung \U0001f600.py", 3, "größe")
    while (stack := thread_stacks()[thread.ident])[0] != waiting:  # the thread is still in `started.set`
        pass
    frames = [
        StackLine(frame.f_code.co_filename, number, frame.f_code.co_name)
        for frame, number in traceback.walk_stack(sys._current_frames()[thread.ident])
    ]
    ended.release()
    thread.join()
    assert stack == frames


def test_frame_of_a_thread_that_has_left_its_line() -> None:
    line = StackLine(__file__, 1, "test")
    assert innermost_frame(threading.get_ident(), line) is None
    assert innermost_frame(0, line) is None


def test_stacks_of_threads_that_run() -> None:
    """Each stack is complete, whatever the running threads do meanwhile: its outermost line starts the thread."""
    ended = threading.Event()
    interval = sys.getswitchinterval()

    def run() -> None:
        while not ended.is_set():
            list(map(str, (number for number in range(20))))

    threads = [threading.Thread(target=run) for _ in range(2)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for _ in range(200):
            stacks = thread_stacks()
            for thread in threads:
                outermost = stacks[thread.ident or 0][-1]
                assert (Path(outermost.file).name, outermost.function) == ("threading.py", "_bootstrap")
    finally:
        sys.setswitchinterval(interval)
        ended.set()
        for thread in threads:
            thread.join()


def test_text_without_a_known_line() -> None:
    text = 'Thread 0x00000000000000ff (most recent call first):\n  File "a.py", line ??? in f\n  <no Python frame>\n'
    assert parsed_stacks(text) == {255: []}
