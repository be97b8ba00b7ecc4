"""The order of keyword arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch


def named_parameters(subject: Callable[..., Any], names: Iterable[str]) -> tuple[str, ...]:
    """Return the `names` that the signature of a function or of a module's `forward` lists, in their order.

    A function cannot see in which order these keyword arguments are passed, unless a decorator looks at them.
    """
    function = type(subject).forward if isinstance(subject, torch.nn.Module) else subject
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a callable without a signature
        return ()
    return tuple(name for name in names if name in parameters)


def in_order(keywords: dict[str, Any], names: Sequence[str]) -> dict[str, Any] | None:
    """Return keyword arguments in the order of `names`, and the others after them; None if that is their order."""
    ordered = {name: keywords[name] for name in names if name in keywords} | keywords
    return None if tuple(ordered) == tuple(keywords) else ordered
