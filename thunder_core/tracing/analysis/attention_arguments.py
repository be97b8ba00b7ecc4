"""The arguments of calls of attention by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thunder_core.tracing.ir.symbol import BoundSymbol

ATTENTION = "torch.nn.functional.scaled_dot_product_attention"
NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
GROUPS = "enable_gqa"


def arguments_by_name(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of attention by name."""
    return dict(zip(NAMES, args, strict=False)) | dict(kwargs)


def arguments_of(bsym: BoundSymbol) -> dict[str, Any]:
    """Return the arguments of attention by name."""
    return arguments_by_name(bsym.args, bsym.kwargs)
