"""Read the stacks of all threads of this process at one moment.

A thread that walks the frames of a running thread by `f_back` lets the other thread continue between two steps. In
CPython 3.11 it then may find an object that is no frame, or end the process by a segmentation fault. So the stacks are
read by `faulthandler`, which holds the GIL from the first frame of the first thread to the last frame of the last.
"""

from __future__ import annotations

import faulthandler
import re
import sys
import tempfile
from typing import NamedTuple

THREAD_LINE = re.compile("(?:Current thread|Thread) (0x[0-9a-f]+)")
FRAME_LINE = re.compile('  File "(.*)", line ([0-9]+) in (.*)')
# `faulthandler` writes characters outside of ASCII in these forms.
ESCAPED = re.compile(r"\\x([0-9a-f]{2})|\\u([0-9a-f]{4})|\\U([0-9a-f]{8})")


class StackLine(NamedTuple):
    """The line at which a frame of a thread is: its file, its number (from 1), and the name of its function."""

    file: str
    number: int
    function: str

    def __str__(self) -> str:
        """Return the file and the number of the line."""
        return f"{self.file}:{self.number}"


def thread_stacks() -> dict[int, list[StackLine]]:
    """Return the lines of each thread by the thread's identifier, from the innermost frame outwards.

    A stack has at most the 100 innermost frames, and no frames whose line is unknown. A file name of more than 500
    characters is cut. `faulthandler` reads the 100 newest threads; of older ones, only the innermost line is known.
    """
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        stacks = parsed_stacks(file.read().decode("ascii", errors="replace"))
    for thread, frame in sys._current_frames().items():
        if thread not in stacks:
            stacks[thread] = [StackLine(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)]
    return stacks


def parsed_stacks(text: str) -> dict[int, list[StackLine]]:
    """Return the lines of each thread from the text that `faulthandler` writes."""
    stacks: dict[int, list[StackLine]] = {}
    stack: list[StackLine] = []
    for line in text.splitlines():
        if thread := THREAD_LINE.match(line):
            stack = stacks[int(thread[1], 16)] = []
        elif frame := FRAME_LINE.match(line):
            stack.append(StackLine(unescaped(frame[1]), int(frame[2]), unescaped(frame[3])))
    return stacks


def unescaped(text: str) -> str:
    """Decode the escapes in a text of `faulthandler`."""
    return ESCAPED.sub(lambda match: chr(int(next(filter(None, match.groups())), 16)), text)
