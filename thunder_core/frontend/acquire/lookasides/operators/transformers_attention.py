"""Flex attention as transformers calls it: through a function that compiles the operator and caches the result."""

from __future__ import annotations

from typing import Any

from torch.nn.attention.flex_attention import flex_attention

from thunder_core.frontend.acquire.traced_run import TracedRun

COMPILING = ("transformers.integrations.flex_attention", "compile_friendly_flex_attention")


def uncompiled_attention(run: TracedRun, function: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the uncompiled operator in place of the function that compiles it."""
    options = {name: value for name, value in kwargs.items() if name != "training"}
    return run.machine.call(flex_attention, *args, **options)
