"""Flex attention as transformers calls it: through a function that compiles the operator and caches the result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.nn.attention.flex_attention import flex_attention

from thunder_core.frontend.acquire.traced_run import TracedRun

COMPILING = ("transformers.integrations.flex_attention", "compile_friendly_flex_attention")


def uncompiled_attention(acquisition: TracedRun, plain: Any) -> Callable[..., Any] | None:
    """Return a replacement for that function which calls the uncompiled operator; None for other functions."""
    if (plain.__module__, plain.__qualname__) != COMPILING:
        return None

    def run(*args: Any, training: bool = False, **kwargs: Any) -> Any:
        return acquisition.machine.call(flex_attention, *args, **kwargs)

    return run
