"""`lookasides`: which calls of a program become calls of something else."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from thunder_core.compilation.compiler.last_call import specializations_of
from thunder_core.frontend.acquire.lookasides.table import LATE_LOOKASIDES, LOOKASIDES
from thunder_core.tracing.extension.lookaside import Lookaside, name_of


@dataclass(frozen=True)
class LookasideDescription:
    """A function whose calls become calls of something else, by its dotted name, and in a line what is called.

    It `is_builtin` where Thunder itself does so in every program, to trace what the function does.
    """

    function: str
    summary: str
    is_builtin: bool


def lookasides(compiled: Callable[..., Any] | None = None) -> tuple[LookasideDescription, ...]:
    """The functions whose calls become calls of something else: those that `compiled` was given, then Thunder's own.

    >>> import thunder_core as thunder
    >>> def silent(*values):
    ...     "Prints nothing."
    >>> compiled = thunder.jit(print, lookasides=[thunder.Lookaside(print, silent)])
    >>> thunder.lookasides(compiled)[0]
    LookasideDescription(function='builtins.print', summary='Prints nothing.', is_builtin=False)

    Raises `WrongInputs` for what was not compiled.
    """
    return (*_given_to(compiled), *sorted(_builtin(), key=lambda described: described.function))


def _given_to(compiled: Callable[..., Any] | None) -> Iterator[LookasideDescription]:
    if compiled is not None:
        given: tuple[Lookaside, ...] = specializations_of(compiled).compiler.settings.lookasides
        yield from (LookasideDescription(one.name, one.summary, is_builtin=False) for one in given)


def _builtin() -> Iterator[LookasideDescription]:
    named = [(name_of(function), handler) for function, handler in LOOKASIDES.items()]
    late = [(f"{module}.{name}", handler) for (module, name), handler in LATE_LOOKASIDES.items()]
    for name, handler in (*named, *late):
        summary = (inspect.getdoc(handler) or "").partition("\n")[0]
        yield LookasideDescription(name, summary, is_builtin=True)
