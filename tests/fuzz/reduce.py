"""Reduce a program that differs to the lines that cause the difference."""

import os
import signal

from tests.fuzz.oracle import difference

# A program without its fuel may never end; no complete program takes this many seconds.
SECONDS = 5


def reduce_program(text: str) -> str:
    """Return the shortest differing program found by removing ever smaller runs of lines."""
    lines = text.splitlines()
    size = len(lines) // 2
    while size:
        start = 0
        while start < len(lines):
            shorter = lines[:start] + lines[start + size :]
            if _differs("\n".join(shorter)):
                lines = shorter
            else:
                start += 1
        size //= 2
    return "\n".join(lines) + "\n"


def _differs(text: str) -> bool:
    """Whether a text is a program that ends and differs; it runs in a process that may be killed."""
    try:
        compile(text, "program.py", "exec")
    except SyntaxError:
        return False
    child = os.fork()
    if not child:
        signal.alarm(SECONDS)
        found = 0
        try:
            found = int(difference(text) is not None)
        finally:
            os._exit(found)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
