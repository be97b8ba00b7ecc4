"""Calls of functions that Dynamo traces: they never silently fall back to eager PyTorch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from threading import RLock
from typing import Any

import torch

from thunder_core.compilation.dynamo.backend import Backend
from thunder_core.compilation.dynamo.report import CaptureLog, reason_in_a_line
from thunder_core.compilation.dynamo.source_lines import line_of_stack
from thunder_core.foundation.errors import DynamoRefuses, ThunderError

FIX_SPLIT = "rewrite the line, or leave out fullgraph=True; thunder_core.splits(compiled) then lists the splits"
FIX_RECOMPILES = "call it with fewer kinds of inputs, raise max_programs, or use dynamic=True for changing sizes"


# This lock is locked while Dynamo captures with changed settings, because the settings are global to the process.
CAPTURE_LOCK = RLock()


class CaptureCallback:
    """The callback with which Dynamo captures a function, with settings that forbid a silent fallback.

    By default, Dynamo falls back to eager PyTorch after an error, and for a function that was captured more than
    `max_programs` times. Calls that an existing graph serves do not use this callback.
    """

    def __init__(self, callback: Callable[..., Any], log: CaptureLog, max_programs: int) -> None:
        functools.update_wrapper(self, callback)
        self._log = log
        self._torchdynamo_orig_backend = callback  # PyTorch finds the backend of a callback by this attribute
        self._settings = {
            "recompile_limit": max_programs,
            "fail_on_recompile_limit_hit": True,
            "suppress_errors": False,
        }

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Capture a function, and record where it is split or not captured."""
        with CAPTURE_LOCK, torch._dynamo.config.patch(self._settings), self._log.note_captures():
            return self._torchdynamo_orig_backend(*args, **kwargs)


class DynamoCall:
    """A function or module that runs as with `torch.compile` and a `backend`."""

    def __init__(
        self, subject: Callable[..., Any], backend: Backend, log: CaptureLog, *, fullgraph: bool, dynamic: bool | None
    ) -> None:
        self.subject = subject
        context: Any = torch._dynamo.optimize(backend=backend, nopython=fullgraph, dynamic=dynamic)
        if callable(getattr(context, "callback", None)):  # unless TORCH_COMPILE_DISABLE=1 switches Dynamo off
            context.callback = CaptureCallback(context.callback, log, backend.compiler.options.max_programs)
        self._run = context(subject)

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the subject; raise `DynamoRefuses` if Dynamo would silently run it in eager PyTorch."""
        try:
            return self._run(*args, **kwargs)
        except (torch._dynamo.exc.TorchDynamoException, torch._dynamo.exc.FailOnRecompileLimitHit) as error:
            raise thunder_error(error) from None


def thunder_error(error: Exception) -> Exception:
    """Return the error of Thunder for an error of Dynamo, or the error of Thunder inside it; other errors unchanged."""
    exceptions = torch._dynamo.exc
    if isinstance(error, exceptions.BackendCompilerFailed):
        inner = error.inner_exception
        return inner if isinstance(inner, ThunderError) else error
    if isinstance(error, exceptions.FailOnRecompileLimitHit):
        return DynamoRefuses(
            "the function is called with more kinds of inputs than max_programs allows", fix=FIX_RECOMPILES
        )
    if isinstance(error, exceptions.Unsupported):
        where = line_of_stack(error.real_stack or ())
        return DynamoRefuses(
            f"Dynamo would split the program: {reason_in_a_line(str(error))}", fix=FIX_SPLIT, where=where
        )
    return error
