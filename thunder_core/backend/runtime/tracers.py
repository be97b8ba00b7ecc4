"""Compiled functions within PyTorch's tracers: Dynamo skips the functions, and all other tracers are refused."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any, NoReturn, TypeVar

import torch
from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy

from thunder_core.foundation import package
from thunder_core.foundation.errors import NotTraceable, SourceLine
from thunder_core.tracing.capture.torch_facts.modes import is_recording, outer_function_mode
from thunder_core.tracing.ir.tree import leaves
from thunder_core.tracing.library.objects import GuardFailed
from thunder_core.tracing.library.tracers import FORWARD_AD, Tracer, active_tracer

Function = TypeVar("Function", bound=Callable[..., Any])

FX_TRACER = Tracer(
    lambda: False,  # `require_no_tracer` detects this tracer by the arguments
    "torch.fx.symbolic_trace",
    "trace the original function, not the compiled function",
)
OWN_TRACER = Tracer(
    is_recording,
    "code of a traced program that Thunder does not trace into, such as the forward of a torch.autograd.Function",
    "call it from the program itself, or call the original function",
)
ENTER_INSIDE = "enter the mode inside the compiled function, which traces the mode, or call the original function"
SKIP_STRATEGY = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
LIBRARIES = (package.FOLDER + os.sep, torch.__path__[0] + os.sep)
REASON = "thunder_core has compiled this function; it runs between two graphs of torch.compile"


def left_alone_by_dynamo(function: Function) -> Function:
    """Mark a function so that Dynamo neither traces nor replaces the function and the functions that it calls.

    The function's code object is marked, which costs a call nothing; `torch.compiler.disable` costs a microsecond for
    each call.
    """
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    function._torchdynamo_disable_msg = REASON  # type: ignore[attr-defined]
    set_code_exec_strategy(function.__code__, SKIP_STRATEGY)
    return function


def refuse_scripting(*_: object) -> NoReturn:
    """Raise `NotTraceable`; `torch.jit.script` calls this to get the code of a compiled function."""
    raise NotTraceable(
        "a compiled function was passed to torch.jit.script",
        fix="pass the original function, not the compiled function",
        where=callers_line(),
    )


def require_no_tracer(arguments: Iterable[Any]) -> None:
    """Raise `NotTraceable` if a tracer or transform of PyTorch is active, or the arguments belong to a tracer."""
    tracer = (OWN_TRACER if is_recording() else active_tracer()) or (
        FX_TRACER if any(map(is_proxy, leaves([*arguments]))) else None
    )
    if tracer is None and (mode := outer_function_mode()) is not None:
        tracer = Tracer(lambda: True, f"the TorchFunctionMode {type(mode).__name__}", ENTER_INSIDE)
    if tracer is not None:
        raise NotTraceable(f"a compiled function was called inside {tracer.name}", fix=tracer.fix, where=callers_line())


def is_forward_derivative() -> bool:
    """Whether `torch.autograd.forward_ad` is the only tracer or transform that is active."""
    return active_tracer() is FORWARD_AD and not is_recording() and outer_function_mode() is None


def blame_tracer(error: BaseException) -> None:
    """Raise `NotTraceable` for an error of a compiled program that ran within a tracer or transform of PyTorch."""
    if isinstance(error, Exception) and not isinstance(error, GuardFailed) and active_tracer() is not None:
        require_no_tracer(())


def is_proxy(value: object) -> bool:
    """Whether a value is a proxy of torch.fx."""
    return issubclass(type(value), torch.fx.Proxy)  # not isinstance, which reads the value's own `__class__`


def callers_line() -> SourceLine | None:
    """Return the innermost source line in this thread's stack that is outside Thunder and PyTorch."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith((*LIBRARIES, "<")):
            return SourceLine(code.co_filename, frame.f_lineno, code.co_qualname)
        frame = frame.f_back
    return None
