"""The way in: `interpret` turns a callable into one that runs inside the interpreter."""

import functools
import sys
from collections.abc import Callable
from typing import Any

from thunder_core.frontend.interpreter import recursion
from thunder_core.frontend.interpreter.machine import PlainMachine
from thunder_core.frontend.interpreter.observed import ObservedMachine
from thunder_core.frontend.interpreter.observer import Observer
from thunder_core.frontend.interpreter.tracebacks import without_own_entries
from thunder_core.frontend.interpreter.versions import require_supported


def interpret(function: Callable[..., Any], observer: Observer | None = None) -> Callable[..., Any]:
    """A callable that runs `function` inside the interpreter; the observer, if any, hears of what it does.

    Raises `PythonNotSupported` on a Python whose bytecode is not known.
    """
    require_supported()

    def interpreted(*arguments: Any, **keywords: Any) -> Any:
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

    return functools.update_wrapper(interpreted, function)
