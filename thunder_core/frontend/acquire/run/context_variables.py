"""Context variables: values that a program sets are restored after tracing, and set by the epilogue at each call.

A context that the program copies (`contextvars.copy_context`) belongs to the program: values set within `Context.run`
stay in the copy. Values read in the copy were the caller's values at the time of the copy, and are guarded.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import operator
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.callables import callable_attribute
from thunder_core.frontend.interpreter.observer import NOT_TAKEN
from thunder_core.tracing.library.context_variables import set_variable

METHODS = frozenset({"get", "set", "reset"})
LOOKUPS = frozenset({operator.getitem, operator.contains})  # operators that look a variable up in a context
NO_VALUE = "no value of a context variable"  # the default of reads that guard whether a variable has a value
FIX_OF_CONTEXT = "copy or make the context in the compiled program, or pass the values as arguments"
RESET_FIX = "reset the variable outside the compiled program, or set it inside"
Tokens = dict[int, list[contextvars.Token[Any]]]


@dataclass(eq=False)
class ContextState:
    """The variables that the program has set in one context.

    `tokens` maps the `id` of a variable to its tokens, the latest last. `inherited` are the variables that the program
    had set before it copied the context. A context that `is_own` has no values of the caller: the program made it by
    `contextvars.Context()`, or copied such a context.
    """

    context: contextvars.Context | None = None
    inherited: frozenset[int] = frozenset()
    is_own: bool = False
    tokens: Tokens = field(default_factory=dict)

    def has_set(self, variable: object) -> bool:
        """Whether only the program determines a variable's value in this context."""
        return self.is_own or bool(self.tokens.get(id(variable))) or id(variable) in self.inherited

    def variables_set(self) -> frozenset[int]:
        """Return the `id` of each variable that the program has set."""
        return frozenset({number for number, tokens in self.tokens.items() if tokens} | self.inherited)


class ContextVariables:
    """The context variables from outside that a program sets, in the caller's context and in copied contexts.

    Coroutines run by `asyncio.run` set variables in a copy of the current context, which is dropped when `asyncio.run`
    returns.
    """

    def __init__(self, run: TracedRun) -> None:
        self._run = run
        self._callers = ContextState()
        self._copies: dict[int, ContextState] = {}
        self._entered: list[ContextState] = []

    @property
    def _state(self) -> ContextState:
        """The context in which the program currently runs."""
        return self._entered[-1] if self._entered else self._callers

    # ---- variables ------------------------------------------------------------------------------------------

    def call_method(self, method: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call `set`, `reset`, `get` after a `set`, and methods of contexts."""
        if type(method) is not types.BuiltinMethodType:
            return NOT_TAKEN
        if type(method.__self__) is contextvars.Context:
            return self._call_method_of_context(method, args, kwargs)
        variable = method.__self__
        if type(variable) is not contextvars.ContextVar or method.__name__ not in METHODS:
            return NOT_TAKEN
        if self._run.outside.path_of(variable) is None:
            return NOT_TAKEN
        if method.__name__ == "get":
            return method(*args, **kwargs) if self.has_set(method) else NOT_TAKEN
        return (self._set if method.__name__ == "set" else self._reset)(variable, *args, **kwargs)

    def _set(self, variable: contextvars.ContextVar[Any], value: object) -> contextvars.Token[Any]:
        state, token = self._state, variable.set(value)
        state.tokens.setdefault(id(variable), []).append(token)
        if state is self._callers:
            self._run.outside.effects.add_undo(functools.partial(self._put_back, variable, token))
            self._run.outside.effects.add_epilogue_call(set_variable, (variable, value))
        return token

    def _reset(self, variable: contextvars.ContextVar[Any], token: contextvars.Token[Any]) -> None:
        state = self._state
        tokens = state.tokens.get(id(variable), [])
        if not any(token is known_token for known_token in tokens):
            self._run.refuse("the program resets a context variable to a value from before the program", RESET_FIX)
        index = next(index for index, known_token in enumerate(tokens) if known_token is token)
        variable.reset(token)
        if state is self._callers:
            self._run.outside.effects.remove_epilogue_calls(set_variable, variable, len(tokens) - index)
        del tokens[index:]

    def has_set(self, method: object) -> bool:
        """Whether a method belongs to a variable that the program has set."""
        state = self._entered[-1] if self._entered else self._callers
        if not (state.tokens or state.inherited or state.is_own):
            return False
        return state.has_set(callable_attribute(method, "__self__"))

    def _put_back(self, variable: contextvars.ContextVar[Any], token: contextvars.Token[Any]) -> None:
        tokens = self._callers.tokens[id(variable)]
        if tokens and tokens[-1] is token:
            tokens.pop()
            with contextlib.suppress(ValueError):  # the variable was set in a context that no longer exists
                variable.reset(token)

    # ---- contexts -------------------------------------------------------------------------------------------

    def copy_current(self) -> contextvars.Context:
        """Return a copy of the current context."""
        context = contextvars.copy_context()
        self._copies[id(context)] = ContextState(context, self._state.variables_set(), self._state.is_own)
        return context

    def make_context(self) -> contextvars.Context:
        """Return a new context, in which no variable is set."""
        context = contextvars.Context()
        self._copies[id(context)] = ContextState(context, is_own=True)
        return context

    def run_in_copy(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function in a copy of the current context."""
        context = self.copy_current()
        with self._within(self._copies[id(context)]):
            return context.run(function, *args)

    def _call_method_of_context(self, method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        state = self._copies.get(id(method.__self__))
        call = METHODS_OF_CONTEXTS.get(method.__name__)
        if state is not None and call is not None:
            return call(self, state, *args, **kwargs)
        if state is not None:
            self._run.note_edge("all variables of a context are read: contextvars.copy_context()", loud=True)
        else:
            self._leave_outside_context(method.__self__)
        return NOT_TAKEN

    def _leave_outside_context(self, context: object) -> None:
        """Leave a program that uses a context from outside to eager PyTorch: the values in it cannot be guarded."""
        if self._run.outside.path_of(context) is not None:
            self._run.leave_to_eager("the program uses a context from outside", FIX_OF_CONTEXT)

    def _run_in(self, state: ContextState, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        assert state.context is not None
        with self._within(state):
            return state.context.run(self._run.machine.call, function, *args, **kwargs)

    def _copy_of(self, state: ContextState) -> contextvars.Context:
        assert state.context is not None
        with self._within(state):
            return state.context.run(self.copy_current)

    def _get(self, state: ContextState, variable: Any, *default: Any) -> Any:
        return self._run_in(state, variable.get, *(default or (None,)))

    def guard_lookup(self, context: contextvars.Context, variable: Any) -> None:
        """Guard the value of a variable in a context that the program has copied, also that it has no value."""
        state = self._copies.get(id(context))
        if state is None:
            self._leave_outside_context(context)
        elif type(variable) is contextvars.ContextVar:
            self._run_in(state, variable.get, NO_VALUE)

    @contextmanager
    def _within(self, state: ContextState) -> Iterator[None]:
        self._entered.append(state)
        try:
            yield
        finally:
            self._entered.pop()


METHODS_OF_CONTEXTS: dict[str, Callable[..., Any]] = {
    "run": ContextVariables._run_in,
    "copy": ContextVariables._copy_of,
    "get": ContextVariables._get,
}
