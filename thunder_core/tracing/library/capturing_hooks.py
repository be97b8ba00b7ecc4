"""The hooks with which models of transformers collect hidden states and attentions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HOOKS = ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")
LIBRARY = "transformers.utils.output_capturing"
FLAG = "_output_capturing_hooks_installed"  # set on a model if its modules have these hooks


def is_capturing(hook: object) -> bool:
    """Whether a forward hook only collects outputs for a model that returns them."""
    return getattr(hook, "__module__", None) == LIBRARY


def no_others(namespace: Mapping[str, Any]) -> bool:
    """Whether all hooks of a module, whose `__dict__` is `namespace`, only collect outputs."""
    return all(is_capturing(hook) for name in HOOKS for hook in namespace[name].values())
