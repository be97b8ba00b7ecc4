"""`functools.wraps` of PyTorch's operators, which have caches among the attributes that it copies."""

from __future__ import annotations

import functools
from typing import Any

from torch._ops import OpOverload, OpOverloadPacket

from thunder_core.frontend.acquire.lookaside_table import lookaside
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.observer import NOT_TAKEN

NAMES = ("wrapper", "wrapped")  # the names of the first two parameters


@lookaside(functools.update_wrapper)
def wrap_operator(run: TracedRun, /, *args: Any, **kwargs: Any) -> Any:
    """Copy the attributes of an operator without guards, because they change at the operator's first call."""
    wrapper, wrapped = (args[index] if index < len(args) else kwargs.get(name) for index, name in enumerate(NAMES))
    if run.outside.path_of(wrapper) is not None or not isinstance(wrapped, OpOverload | OpOverloadPacket):
        return NOT_TAKEN
    return run.machine.call_uninterpreted(functools.update_wrapper, args, kwargs)
