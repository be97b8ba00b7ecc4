"""The calls of PyTorch that a program makes in eager PyTorch: the function, the place and what it returned.

The results of all calls of a large program would take more memory than its weights: some are held at a time, and the
program runs again for the results that follow.
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

from thunder_core.frontend.acquire.code_origins import CONTEXTS, TORCH_FOLDER
from thunder_core.tracing.ir.tree import leaves

ROOT_MODULE = "module"  # names the subject itself in traces
LEAST_ROOM = 64 << 20  # bytes
PART_OF_WEIGHTS = 0.05
OTHER_CALLS = "the program makes other calls of PyTorch when it runs again"
MODULE_CALL: CodeType = torch.nn.Module._call_impl.__code__


@dataclass(frozen=True)
class EagerPlace:
    """The place of a call: the user's file and line, and the path of the innermost module that runs."""

    filename: str = ""
    lineno: int = 0
    module: str = ""


Results = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class EagerCall:
    """A call of PyTorch that a program made: the function, its place, its number, and how many tensors it returned."""

    function: Callable[..., Any]
    place: EagerPlace
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
    """Record the calls of PyTorch beneath it, with copies of what they return, from a `first` call on.

    `subject` is the function or module that is called; its modules are named by their paths. As many results are
    `held`, by the numbers of calls, as `room` bytes hold, or those of one call.
    """

    def __init__(self, subject: object = None, first: int = 0, room: float = math.inf) -> None:
        super().__init__()
        self.calls: list[EagerCall] = []
        self.held: dict[int, Results] = {}
        self._first, self._room, self._is_full = first, room, False
        modules = subject.named_modules() if isinstance(subject, torch.nn.Module) else ()
        self._paths = {id(module): path or ROOT_MODULE for path, module in modules}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call the function, and record the call."""
        result = func(*args, **(kwargs or {}))
        tensors = tuple(one.detach() for one in leaves(result) if is_dense(one))
        if tensors:
            number = len(self.calls)
            self.calls.append(EagerCall(func, self._place(), number, len(tensors), self.held.__getitem__))
            if number >= self._first and self._has_room(tensors):
                self.held[number] = tuple(one.clone() for one in tensors)
        return result

    def _has_room(self, tensors: Results) -> bool:
        """Whether the results of a call can be held; those of all that follow cannot, once there is no room."""
        self._room -= sum(one.nbytes for one in tensors)
        self._is_full = self._is_full or (self._room < 0 and bool(self.held))
        return not self._is_full

    def _place(self) -> EagerPlace:
        """The place of the call that is made now, named as traces name places."""
        frames = [frame for frame in frames_outward() if frame.f_code.co_filename != __file__]
        running = next((frame.f_locals["self"] for frame in frames if frame.f_code is MODULE_CALL), None)
        module = "" if running is None else self._paths.get(id(running), type(running).__name__)
        users = next((frame for frame in frames if is_users(frame)), None)
        filename, lineno = ("", 0) if users is None else (users.f_code.co_filename, users.f_lineno)
        return EagerPlace(filename, lineno, module)


class RepeatedRecording:
    """The results of a program's calls, of which some are held at a time; `run` runs the program under a recorder."""

    def __init__(self, subject: object, run: Callable[[RecordCalls], None], room: float) -> None:
        self._subject, self._run, self._room = subject, run, room
        recorder = self._recorded(first=0)
        self._held = recorder.held
        self.calls = [replace(call, results_of=self._results) for call in recorder.calls]

    def _recorded(self, first: int) -> RecordCalls:
        recorder = RecordCalls(self._subject, first, self._room)
        self._run(recorder)
        return recorder

    def _results(self, number: int) -> Results:
        """The results of a call; the program runs again for results that are not held."""
        if number not in self._held:
            self._held = {}
            again = self._recorded(first=number)
            if [kind_of(call) for call in again.calls] != [kind_of(call) for call in self.calls]:
                raise RuntimeError(OTHER_CALLS)
            self._held = again.held
        return self._held[number]


def room_beside(weights: int) -> int:
    """The bytes of results that are held at a time, beside so many bytes of weights."""
    return max(LEAST_ROOM, int(PART_OF_WEIGHTS * weights))


def kind_of(call: EagerCall) -> tuple[str, EagerPlace, int]:
    """The function, the place and the number of results of a call, which it has each time that the program runs."""
    return call.name, call.place, call.result_count


def frames_outward() -> Iterator[FrameType]:
    """The frames of this thread, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def is_users(frame: FrameType) -> bool:
    """Whether a frame runs neither PyTorch's own code nor that of context managers."""
    filename = frame.f_code.co_filename
    return not filename.startswith(TORCH_FOLDER) and filename != CONTEXTS


def is_dense(value: object) -> bool:
    """Whether a value is a tensor with strides."""
    return isinstance(value, torch.Tensor) and value.layout is torch.strided
