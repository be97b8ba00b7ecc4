"""The entry point: `interpret` turns a callable into a callable that runs inside the interpreter."""

import functools
import sys
import types
from collections.abc import Callable
from typing import Any

from thunder_core.frontend.interpreter import recursion
from thunder_core.frontend.interpreter.machine import PlainMachine
from thunder_core.frontend.interpreter.observed import ObservedMachine
from thunder_core.frontend.interpreter.observer import Observer
from thunder_core.frontend.interpreter.tracebacks import without_own_entries
from thunder_core.frontend.interpreter.versions import require_supported


def interpret(function: Callable[..., Any], observer: Observer | None = None) -> Callable[..., Any]:
    """Return a callable that runs `function` inside the interpreter, and reports events to the observer, if any.

    Raises `PythonNotSupported` on a Python version whose bytecode is not supported.
    """
    require_supported()

    def call_interpreted(*arguments: Any, **keywords: Any) -> Any:
        machine = PlainMachine() if observer is None else ObservedMachine(observer)
        machine.outside = sys._getframe(1)
        machine.limit = recursion.enter()
        try:
            return machine.invoke(function, arguments, keywords)
        except BaseException as error:
            error.__traceback__ = without_own_entries(error.__traceback__)
            raise
        finally:
            recursion.leave()
            machine.outside = None

    # For other objects, `update_wrapper` could run Python code, such as a property `__name__`.
    is_function = isinstance(function, types.FunctionType | types.MethodType)
    return functools.update_wrapper(call_interpreted, function) if is_function else call_interpreted
