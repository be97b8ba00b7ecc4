"""Calls that pass arguments differently from an artifact's example: by position instead of by name, or in another
order.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class ArgumentOrder:
    """The keyword arguments of an example that calls may pass in another order or by position.

    Arguments in `keywords` may be passed in any order. Arguments in `positional` are the first parameters of the
    function, and may be passed by position. A function cannot distinguish these calls, unless a decorator inspects
    them.
    """

    keywords: tuple[str, ...] = ()
    positional: tuple[str, ...] = ()

    @classmethod
    def of(cls, subject: Callable[..., Any], example: Iterable[str]) -> ArgumentOrder:
        """Return the order for an example's keyword arguments of a function, or of a module's `forward`."""
        function = subject.forward if isinstance(subject, torch.nn.Module) else subject
        try:
            parameters = inspect.signature(function).parameters
        except (TypeError, ValueError):  # a callable without a signature
            return cls()
        keywords = tuple(name for name in example if name in parameters)
        positional = list[str]()
        for name, parameter in parameters.items():
            if name not in keywords or parameter.kind is not parameter.POSITIONAL_OR_KEYWORD:
                break
            positional.append(name)
        return cls(keywords, tuple(positional))

    def as_in_example(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the arguments of a call as keyword arguments in the example's order.

        Return None if the call already passes them in this way, or if an argument has no name.
        """
        named = dict(zip(self.positional, args, strict=False))
        if len(named) < len(args) or not named.keys().isdisjoint(kwargs):
            return None
        passed = {**named, **kwargs}
        ordered = {name: passed[name] for name in self.keywords if name in passed} | passed
        return None if not args and tuple(ordered) == tuple(kwargs) else ordered


AS_PASSED = ArgumentOrder()  # each argument has to be passed as it was when the program was traced
