"""A profiler that finds Python code that C code runs natively. An observer enables it with `watches_native_code`."""

import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any


class NativeCodeProfiler:
    """Reports each code object that runs natively once. If the user's profiler is active, nothing is reported."""

    def __init__(self, report: Callable[[CodeType], None]) -> None:
        self._report = report
        self._seen: set[CodeType] = set()

    def call(self, function: Any, arguments: Any, keywords: dict[str, Any]) -> Any:
        """Call a function natively, with the profiler active."""
        before = self.watch(True)
        try:
            return function(*arguments, **keywords)
        finally:
            self.watch(before)

    def watch(self, on: bool) -> bool:
        """Start or stop the profiler. Return whether it was active before."""
        profiler: Any = sys.getprofile()
        if profiler is None or profiler == self._notice:
            sys.setprofile(self._notice if on else None)
        return bool(profiler == self._notice)

    def _notice(self, frame: FrameType, event: str, _argument: object) -> None:
        """Report the code of a function when it is called for the first time."""
        if event == "call" and frame.f_code not in self._seen:
            self._seen.add(frame.f_code)
            self._report(frame.f_code)
