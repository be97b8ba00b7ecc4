"""The calls of PyTorch that a program makes in eager PyTorch: the function, the place and what it returned."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from thunder_core.acquire.code_origins import CONTEXTS, TORCH_FOLDER
from thunder_core.ir.tree import leaves

ROOT_MODULE = "module"  # names the subject itself in traces
MODULE_CALL: CodeType = torch.nn.Module._call_impl.__code__


@dataclass(frozen=True)
class EagerPlace:
    """The place of a call: the user's file and line, and the path of the innermost module that runs."""

    filename: str = ""
    lineno: int = 0
    module: str = ""


@dataclass(frozen=True)
class EagerCall:
    """A call of PyTorch that a program made: the function, its place, and copies of the tensors that it returned."""

    function: Callable[..., Any]
    place: EagerPlace
    results: tuple[torch.Tensor, ...]

    @property
    def name(self) -> str:
        """The name of the function."""
        return str(getattr(self.function, "__name__", ""))


class RecordCalls(TorchFunctionMode):
    """Record the calls of PyTorch beneath it, with copies of what they return.

    `subject` is the function or module that is called; its modules are named by their paths.
    """

    def __init__(self, subject: object = None) -> None:
        super().__init__()
        self.calls: list[EagerCall] = []
        modules = subject.named_modules() if isinstance(subject, torch.nn.Module) else ()
        self._paths = {id(module): path or ROOT_MODULE for path, module in modules}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call the function, and record the call."""
        result = func(*args, **(kwargs or {}))
        tensors = tuple(one.detach().clone() for one in leaves(result) if is_dense(one))
        if tensors:
            self.calls.append(EagerCall(func, self._place(), tensors))
        return result

    def _place(self) -> EagerPlace:
        """The place of the call that is made now, named as traces name places."""
        frames = [frame for frame in frames_outward() if frame.f_code.co_filename != __file__]
        running = next((frame.f_locals["self"] for frame in frames if frame.f_code is MODULE_CALL), None)
        module = "" if running is None else self._paths.get(id(running), type(running).__name__)
        users = next((frame for frame in frames if is_users(frame)), None)
        filename, lineno = ("", 0) if users is None else (users.f_code.co_filename, users.f_lineno)
        return EagerPlace(filename, lineno, module)


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
