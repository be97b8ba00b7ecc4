"""Calls of what Dynamo acquires: it may fall back to nothing unseen, and errors are Thunder's own or the program's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from thunder_core.dynamo.backend import Backend
from thunder_core.dynamo.graph_places import line_of_stack
from thunder_core.dynamo.report import CaptureLog, in_a_line
from thunder_core.errors import DynamoRefuses, ThunderError

TOGETHER = "write the line otherwise, or leave fullgraph=True out: thunder_core.splits(compiled) then tells of splits"
FEWER = "call it with inputs of fewer kinds, raise max_programs, or name changing sizes by dynamic=True"


class DynamoCall:
    """A function or module as `torch.compile` runs it with a `backend`."""

    def __init__(
        self, subject: Callable[..., Any], backend: Backend, log: CaptureLog, *, fullgraph: bool, dynamic: bool | None
    ) -> None:
        self.subject = subject
        self._log = log
        self._run = torch.compile(subject, backend=backend, fullgraph=fullgraph, dynamic=dynamic)
        limit = backend.compiler.options.max_programs
        self._settings = torch._dynamo.config.patch(
            recompile_limit=limit,
            accumulated_recompile_limit=max(limit, torch._dynamo.config.accumulated_recompile_limit),
            fail_on_recompile_limit_hit=True,
            suppress_errors=False,
        )

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call it; raises `DynamoRefuses` where Dynamo would run it in eager PyTorch without telling."""
        if self._log.is_current() is False:
            self._log.skip_to_now()
        try:
            with self._settings:
                return self._run(*args, **kwargs)
        except (torch._dynamo.exc.TorchDynamoException, torch._dynamo.exc.FailOnRecompileLimitHit) as error:
            raise told(error) from None
        finally:
            self._log.note()


def told(error: Exception) -> Exception:
    """The error of Dynamo's in Thunder's words; one of Thunder's own that Dynamo wraps; another one as it is."""
    exceptions = torch._dynamo.exc
    if isinstance(error, exceptions.BackendCompilerFailed):
        inner = error.inner_exception
        return inner if isinstance(inner, ThunderError) else error
    if isinstance(error, exceptions.FailOnRecompileLimitHit):
        return DynamoRefuses("it is called with inputs of more kinds than max_programs allows", fix=FEWER)
    if isinstance(error, exceptions.Unsupported):
        where = line_of_stack(error.real_stack or ())
        return DynamoRefuses(f"Dynamo would split the program: {in_a_line(str(error))}", fix=TOGETHER, where=where)
    return error
