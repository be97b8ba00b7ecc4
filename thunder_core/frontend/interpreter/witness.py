"""Notices the Python code that C code runs natively, where an observer asks for it: each native call is profiled."""

import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any


class Witness:
    """Tells of each code object, once, that runs natively while it watches; a profiler that is at work wins."""

    def __init__(self, tell: Callable[[CodeType], None]) -> None:
        self._tell = tell
        self._seen: set[CodeType] = set()

    def call(self, function: Any, arguments: Any, keywords: dict[str, Any]) -> Any:
        """Call natively, and watch."""
        before = self.watch(True)
        try:
            return function(*arguments, **keywords)
        finally:
            self.watch(before)

    def watch(self, on: bool) -> bool:
        """Begin or stop watching; whether it was watching before."""
        found: Any = sys.getprofile()
        if found is None or found == self._notice:
            sys.setprofile(self._notice if on else None)
        return bool(found == self._notice)

    def _notice(self, frame: FrameType, event: str, _argument: Any) -> None:
        """A function was called."""
        if event == "call" and frame.f_code not in self._seen:
            self._seen.add(frame.f_code)
            self._tell(frame.f_code)
