"""Detection of Python code that C code runs natively, if an observer requests it. Each native call is profiled."""

import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any


class Witness:
    """Reports each code object that runs natively, once. If another profiler is active, nothing is reported."""

    def __init__(self, tell: Callable[[CodeType], None]) -> None:
        self._tell = tell
        self._seen: set[CodeType] = set()

    def call(self, function: Any, arguments: Any, keywords: dict[str, Any]) -> Any:
        """Call a function natively, while watching."""
        before = self.watch(True)
        try:
            return function(*arguments, **keywords)
        finally:
            self.watch(before)

    def watch(self, on: bool) -> bool:
        """Start or stop watching. Return whether it was watching before."""
        profiler: Any = sys.getprofile()
        if profiler is None or profiler == self._notice:
            sys.setprofile(self._notice if on else None)
        return bool(profiler == self._notice)

    def _notice(self, frame: FrameType, event: str, _argument: object) -> None:
        """Report the code of a function that was called."""
        if event == "call" and frame.f_code not in self._seen:
            self._seen.add(frame.f_code)
            self._tell(frame.f_code)
