"""`functools.wraps` of PyTorch's operators, which keep caches among the attributes that it copies."""

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
    """Copy the attributes of an operator without a guard on each, as they change when it is first called."""
    wrapper, wrapped = (args[place] if place < len(args) else kwargs.get(name) for place, name in enumerate(NAMES))
    is_own = acquisition.outside.path_of(wrapper) is None
    return function if is_own and isinstance(wrapped, OpOverload | OpOverloadPacket) else None
