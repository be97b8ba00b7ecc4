"""The hooks by which models of transformers collect hidden states and attentions, told from all others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HOOKS = ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")
LIBRARY = "transformers.utils.output_capturing"
FLAG = "_output_capturing_hooks_installed"  # the attribute of a model that says whether its modules have them


def is_capturing(hook: Any) -> bool:
    """Whether a forward hook collects outputs for a model that is asked for them, and does nothing else."""
    return getattr(hook, "__module__", None) == LIBRARY


def no_others(namespace: Mapping[str, Any]) -> bool:
    """Whether a module, given by its `__dict__`, has no hooks but those that collect outputs."""
    return all(is_capturing(hook) for name in HOOKS for hook in namespace[name].values())
