"""Calls of what Dynamo acquires: it may fall back to nothing unseen, and errors are Thunder's own or the program's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from threading import RLock
from typing import Any

import torch

from thunder_core.compilation.dynamo.backend import Backend
from thunder_core.compilation.dynamo.graph_places import line_of_stack
from thunder_core.compilation.dynamo.report import CaptureLog, in_a_line
from thunder_core.foundation.errors import DynamoRefuses, ThunderError

TOGETHER = "rewrite the line, or leave out fullgraph=True; thunder_core.splits(compiled) then lists the splits"
FEWER = "call it with fewer kinds of inputs, raise max_programs, or use dynamic=True for changing sizes"


# Held while Dynamo captures with other settings, which are those of the process.
CAPTURING = RLock()


class CaptureCallback:
    """The callback by which Dynamo captures a function that no graph takes, with settings that hide nothing.

    A function that is captured for more kinds of inputs than `max_programs`, and an error, would else lead to eager
    PyTorch. Calls that a graph takes do not come here.
    """

    def __init__(self, callback: Callable[..., Any], log: CaptureLog, max_programs: int) -> None:
        functools.update_wrapper(self, callback)
        self._log = log
        self._torchdynamo_orig_backend = callback  # by which PyTorch finds the backend behind a callback
        self._settings = {
            "recompile_limit": max_programs,
            "fail_on_recompile_limit_hit": True,
            "suppress_errors": False,
        }

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Capture a function, and note where it is split or left alone."""
        with CAPTURING, torch._dynamo.config.patch(self._settings), self._log.noting():
            return self._torchdynamo_orig_backend(*args, **kwargs)


class DynamoCall:
    """A function or module as `torch.compile` runs it with a `backend`."""

    def __init__(
        self, subject: Callable[..., Any], backend: Backend, log: CaptureLog, *, fullgraph: bool, dynamic: bool | None
    ) -> None:
        self.subject = subject
        context: Any = torch._dynamo.optimize(backend=backend, nopython=fullgraph, dynamic=dynamic)
        if callable(getattr(context, "callback", None)):  # unless TORCH_COMPILE_DISABLE=1 switches Dynamo off
            context.callback = CaptureCallback(context.callback, log, backend.compiler.options.max_programs)
        self._run = context(subject)

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call it; raises `DynamoRefuses` where Dynamo would run it in eager PyTorch without telling."""
        try:
            return self._run(*args, **kwargs)
        except (torch._dynamo.exc.TorchDynamoException, torch._dynamo.exc.FailOnRecompileLimitHit) as error:
            raise told(error) from None


def told(error: Exception) -> Exception:
    """The error of Dynamo's in Thunder's words; one of Thunder's own that Dynamo wraps; another one as it is."""
    exceptions = torch._dynamo.exc
    if isinstance(error, exceptions.BackendCompilerFailed):
        inner = error.inner_exception
        return inner if isinstance(inner, ThunderError) else error
    if isinstance(error, exceptions.FailOnRecompileLimitHit):
        return DynamoRefuses("the function is called with more kinds of inputs than max_programs allows", fix=FEWER)
    if isinstance(error, exceptions.Unsupported):
        where = line_of_stack(error.real_stack or ())
        return DynamoRefuses(f"Dynamo would split the program: {in_a_line(str(error))}", fix=TOGETHER, where=where)
    return error
