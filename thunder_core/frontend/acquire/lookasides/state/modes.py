"""Modes that the program enters: a mode for torch functions is interpreted, a mode for ATen operations is refused."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import CodeType
from typing import Any, NoReturn

import torch
from torch.overrides import TorchFunctionMode, handle_torch_function
from torch.utils._device import DeviceContext

from thunder_core.frontend.acquire.lookaside_table import lookaside
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.observer import NOT_TAKEN
from thunder_core.tracing.capture.subclasses import torch_function_classes
from thunder_core.tracing.capture.torch_facts.modes import FunctionMode
from thunder_core.tracing.capture.torch_facts.symbols import communicates

PUSH_MODE: Callable[[Any], None] = torch._C._push_on_torch_function_stack
POP_MODE: Callable[[], Any] = torch._C._pop_torch_function_stack
MODE_AT: Callable[[int], Any] = torch._C._get_function_stack_at
WITH_FUSED_OPERATORS = (torch.nn.MultiheadAttention.forward.__code__, torch.nn.TransformerEncoderLayer.forward.__code__)


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


@lookaside(PUSH_MODE)
def push_mode(run: TracedRun, /, mode: object) -> None:
    """Enter a mode. Default devices and Thunder's own modes are entered as they are."""
    PUSH_MODE(mode if isinstance(mode, DeviceContext | FunctionMode) else InterpretedMode(run, mode))


@lookaside(POP_MODE)
def pop_mode(run: TracedRun, /) -> Any:
    """Leave the innermost mode, and return the program's mode."""
    return shown_mode(POP_MODE())


@lookaside(MODE_AT)
def mode_at(run: TracedRun, /, index: int) -> Any:
    """Return the program's mode at a position of the stack."""
    return shown_mode(MODE_AT(index))


def must_reach_modes(code: CodeType) -> bool:
    """Whether `has_torch_function` must return True in this code because of Thunder's own mode.

    This holds for operations, which pass themselves to torch function modes, and for `WITH_FUSED_OPERATORS`. It does
    not hold for functions of `torch.distributed`: their calls of a process group are recorded.
    """
    passes_itself = handle_torch_function.__name__ in code.co_names and not communicates(code)
    return passes_itself or code in WITH_FUSED_OPERATORS


@lookaside(torch._C._has_torch_function)
def has_torch_function(run: TracedRun, /, values: Any) -> Any:
    """Return whether classes of arguments or modes of the program override PyTorch's functions, as in eager PyTorch.

    PyTorch's Python code takes another path if the result is True. Thunder's own mode does not count, so that the path
    is the same as in eager PyTorch, except in `WITH_FUSED_OPERATORS`: in inference, these modules would call one
    operator for a whole layer. With Thunder's mode they call separate operations, which executors can claim and fuse.
    """
    frame = run.machine.frame
    if not torch._C._is_torch_function_enabled() or (frame is not None and must_reach_modes(frame.code)):
        return NOT_TAKEN
    modes = map(MODE_AT, range(torch._C._len_torch_function_stack()))
    if any(type(mode) is not FunctionMode for mode in modes):
        return True
    return bool(torch_function_classes(tuple(run.class_of(value) for value in values)))


@lookaside(torch._C._has_torch_function_unary, torch._C._has_torch_function_variadic)
def have_torch_function(run: TracedRun, /, *values: Any) -> Any:
    """Return whether one of several arguments, or a mode of the program, overrides PyTorch's functions."""
    return has_torch_function(run, values)


@lookaside(torch._C._push_on_torch_dispatch_stack)
def push_dispatch_mode(run: TracedRun, /, mode: object) -> NoReturn:
    """Leave the program to eager PyTorch: its `TorchDispatchMode` would receive tensors without data."""
    run.leave_to_eager(
        f"the program enters the mode {type(mode).__name__}, whose `__torch_dispatch__` a trace cannot call",
        fix="enter the mode outside the compiled program, or use a `TorchFunctionMode`",
    )
