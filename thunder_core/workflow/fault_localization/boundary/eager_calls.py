"""The calls of PyTorch that a program makes in eager PyTorch: the function, the source line and the results.

The results of all calls of a large program would take more memory than its weights. Only some results are therefore
kept in memory, and the program runs again to get the next results.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import CodeType, FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from thunder_core.frontend.acquire.run.code_origins import FILES_OF_WRAPPERS, TORCH_FOLDER
from thunder_core.tracing.ir.tree import leaves

ROOT_MODULE = "module"  # the name of the subject in traces
MIN_ROOM = 64 << 20  # bytes
SHARE_OF_WEIGHTS = 0.05
OTHER_CALLS = "the program makes other calls of PyTorch when it runs again"
MODULE_CALL: CodeType = torch.nn.Module._call_impl.__code__


@dataclass(frozen=True)
class CallLocation:
    """The location of a call: the source file and line, and the path of the innermost running module."""

    filename: str = ""
    lineno: int = 0
    module: str = ""


Results = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class EagerCall:
    """A call of PyTorch that a program made: the function, the location, the call's number and its result count."""

    function: Callable[..., Any]
    location: CallLocation
    number: int
    result_count: int
    results_of: Callable[[int], Results]

    @property
    def name(self) -> str:
        """The name of the function."""
        return str(getattr(self.function, "__name__", ""))

    @property
    def results(self) -> Results:
        """Copies of the tensors that the call returned."""
        return self.results_of(self.number)


class RecordCalls(TorchFunctionMode):
    """A mode that records calls of PyTorch, and copies of the results of the calls from number `first` on.

    `subject` is the function or module that is called; its modules are named by their paths. `saved_results` has the
    results by call number, up to `room` bytes, but at least the results of one call.
    """

    def __init__(self, subject: object = None, first: int = 0, room: float = math.inf) -> None:
        super().__init__()
        self.calls: list[EagerCall] = []
        self.saved_results: dict[int, Results] = {}
        self._first, self._room, self._is_full = first, room, False
        modules = subject.named_modules() if isinstance(subject, torch.nn.Module) else ()
        self._paths = {id(module): path or ROOT_MODULE for path, module in modules}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call the function, and record the call."""
        result = func(*args, **(kwargs or {}))
        tensors = tuple(leaf.detach() for leaf in leaves(result) if is_dense(leaf))
        if tensors:
            number = len(self.calls)
            self.calls.append(EagerCall(func, self._location(), number, len(tensors), self.saved_results.__getitem__))
            if number >= self._first and self._has_room(tensors):
                self.saved_results[number] = tuple(tensor.clone() for tensor in tensors)
        return result

    def _has_room(self, tensors: Results) -> bool:
        """Whether there is room for a call's results; after the first call without room, no results are kept."""
        self._room -= sum(tensor.nbytes for tensor in tensors)
        self._is_full = self._is_full or (self._room < 0 and bool(self.saved_results))
        return not self._is_full

    def _location(self) -> CallLocation:
        """Return the location of the current call, with the names that traces use."""
        frames = [frame for frame in frames_outward() if frame.f_code.co_filename != __file__]
        running = next((frame.f_locals["self"] for frame in frames if frame.f_code is MODULE_CALL), None)
        module = "" if running is None else self._paths.get(id(running), type(running).__name__)
        users = next((frame for frame in frames if is_users(frame)), None)
        filename, lineno = ("", 0) if users is None else (users.f_code.co_filename, users.f_lineno)
        return CallLocation(filename, lineno, module)


class RepeatedRecording:
    """The results of a program's calls, some of which are in memory; `run` runs the program under a recorder."""

    def __init__(self, subject: object, run: Callable[[RecordCalls], None], room: float) -> None:
        self._subject, self._run, self._room = subject, run, room
        recorder = self._record(first=0)
        self._held = recorder.saved_results
        self.calls = [replace(call, results_of=self._results) for call in recorder.calls]

    def _record(self, first: int) -> RecordCalls:
        recorder = RecordCalls(self._subject, first, self._room)
        self._run(recorder)
        return recorder

    def _results(self, number: int) -> Results:
        """Return the results of a call; run the program again if they are not in memory."""
        if number not in self._held:
            self._held = {}
            again = self._record(first=number)
            if [kind_of(call) for call in again.calls] != [kind_of(call) for call in self.calls]:
                raise RuntimeError(OTHER_CALLS)
            self._held = again.saved_results
        return self._held[number]


def bytes_for_results(weights: int) -> int:
    """Return the number of bytes of results to keep in memory, for a model with `weights` bytes of weights."""
    return max(MIN_ROOM, int(SHARE_OF_WEIGHTS * weights))


def kind_of(call: EagerCall) -> tuple[str, CallLocation, int]:
    """Return the function, the location and the number of results of a call, which are the same in each run."""
    return call.name, call.location, call.result_count


def frames_outward() -> Iterator[FrameType]:
    """Yield the frames of this thread, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def is_users(frame: FrameType) -> bool:
    """Whether a frame runs neither PyTorch's own code nor the code of context managers."""
    filename = frame.f_code.co_filename
    return not filename.startswith(TORCH_FOLDER) and filename not in FILES_OF_WRAPPERS


def is_dense(value: object) -> bool:
    """Whether a value is a strided tensor."""
    return isinstance(value, torch.Tensor) and value.layout is torch.strided
