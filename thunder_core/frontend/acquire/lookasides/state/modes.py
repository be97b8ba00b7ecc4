"""Modes that the program enters: a mode for torch functions is interpreted, a mode for ATen operations is refused."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext

from thunder_core.frontend.acquire.lookasides.table import lookaside
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.tracing.capture.torch_facts.modes import FunctionMode

PUSH: Callable[[Any], None] = torch._C._push_on_torch_function_stack
POP: Callable[[], Any] = torch._C._pop_torch_function_stack
AT: Callable[[int], Any] = torch._C._get_function_stack_at


class InterpretedMode(TorchFunctionMode):
    """A mode in place of the program's mode, whose `__torch_function__` the machine interprets."""

    def __init__(self, run: TracedRun, mode: Any) -> None:
        super().__init__()
        self.mode = mode
        self._call = functools.partial(run.machine.call_back, type(mode).__torch_function__)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._call((self.mode, func, types, args, kwargs), {})


def shown_mode(mode: object) -> Any:
    """Return the mode that the program entered."""
    return mode.mode if type(mode) is InterpretedMode else mode


@lookaside(PUSH)
def push_mode(run: TracedRun, /, mode: object) -> None:
    """Enter a mode. Default devices and Thunder's own modes are entered as they are."""
    PUSH(mode if isinstance(mode, DeviceContext | FunctionMode) else InterpretedMode(run, mode))


@lookaside(POP)
def pop_mode(run: TracedRun, /) -> Any:
    """Leave the innermost mode, and return the program's mode."""
    return shown_mode(POP())


@lookaside(AT)
def mode_at(run: TracedRun, /, index: int) -> Any:
    """Return the program's mode at a position of the stack."""
    return shown_mode(AT(index))


@lookaside(torch._C._push_on_torch_dispatch_stack)
def push_dispatch_mode(run: TracedRun, /, mode: object) -> NoReturn:
    """Leave a mode to eager PyTorch that would get the ATen operations of tensors without data."""
    run.leave_to_eager(
        f"the program enters a {type(mode).__name__}, whose `__torch_dispatch__` a trace cannot call",
        fix="enter the mode outside the compiled program, or use a `TorchFunctionMode`",
    )
