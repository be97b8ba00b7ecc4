"""`functools.wraps` of PyTorch's operators, which have caches among the attributes that it copies."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch._ops import OpOverload, OpOverloadPacket

from thunder_core.frontend.acquire.lookasides.table import lookaside
from thunder_core.frontend.acquire.traced_run import TracedRun

NAMES = ("wrapper", "wrapped")  # of the first parameters


@lookaside(functools.update_wrapper)
def wrap_operator(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any] | None:
    """Copy the attributes of an operator without guards, because they change at the operator's first call."""
    wrapper, wrapped = (args[place] if place < len(args) else kwargs.get(name) for place, name in enumerate(NAMES))
    is_new = acquisition.outside.path_of(wrapper) is None
    return function if is_new and isinstance(wrapped, OpOverload | OpOverloadPacket) else None
