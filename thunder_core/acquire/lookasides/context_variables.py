"""Context variables: what a program sets is put back when tracing ends, and set by the epilogue at each call."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import types
from collections.abc import Callable
from typing import Any

from thunder_core.runtime.library.context_variables import set_variable

METHODS = frozenset({"get", "set", "reset"})


class ContextVariables:
    """The context variables from outside that one program sets, with the tokens of what it set, the latest last.

    What coroutines set that `asyncio.run` runs is set in a context of their own, and is gone when that returns.
    """

    def __init__(self, acquisition: Any) -> None:
        self._acquisition = acquisition
        self._tokens: dict[tuple[bool, int], list[contextvars.Token[Any]]] = {}

    def method(self, _acquisition: Any, method: Any) -> Callable[..., Any] | None:
        """The stand-in of `set` and `reset`, and of `get` behind a `set`; None for all else."""
        if type(method) is not types.BuiltinMethodType or type(method.__self__) is not contextvars.ContextVar:
            return None
        variable = method.__self__
        if method.__name__ not in METHODS or self._acquisition.outside.path_of(variable) is None:
            return None
        if method.__name__ == "get":
            return functools.partial(method) if self.has_set(method) else None
        return functools.partial(self._set if method.__name__ == "set" else self._reset, variable)

    def _tokens_of(self, variable: Any) -> list[contextvars.Token[Any]]:
        return self._tokens.setdefault((bool(self._acquisition.asyncio_run_depth), id(variable)), [])

    def _set(self, variable: contextvars.ContextVar[Any], value: Any) -> contextvars.Token[Any]:
        token = variable.set(value)
        self._tokens_of(variable).append(token)
        if not self._acquisition.asyncio_run_depth:
            self._acquisition.outside.effects.undo_by(functools.partial(self._put_back, variable, token))
            self._acquisition.outside.effects.calls(set_variable, (variable, value))
        return token

    def _reset(self, variable: contextvars.ContextVar[Any], token: contextvars.Token[Any]) -> None:
        tokens = self._tokens_of(variable)
        if not any(token is one for one in tokens):
            self._acquisition.refuse("the program resets a context variable to a value from before the program", RESET)
        place = next(place for place, one in enumerate(tokens) if one is token)
        variable.reset(token)
        if not self._acquisition.asyncio_run_depth:
            self._acquisition.outside.effects.withdraw(set_variable, variable, len(tokens) - place)
        del tokens[place:]

    def has_set(self, method: Any) -> bool:
        """Whether a method is one of a variable that the program has set, so that it gives what the program set."""
        return bool(self._tokens) and bool(self._tokens_of(getattr(method, "__self__", None)))

    def _put_back(self, variable: contextvars.ContextVar[Any], token: contextvars.Token[Any]) -> None:
        tokens = self._tokens[False, id(variable)]
        if tokens and tokens[-1] is token:
            tokens.pop()
            with contextlib.suppress(ValueError):  # it was set in a context of its own, which is gone
                variable.reset(token)


RESET = "reset the variable outside the compiled program, or set it inside"
