"""`lookasides`: list the functions whose calls are replaced during tracing."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from thunder_core.compilation.compiler.last_call import specializations_of
from thunder_core.frontend.acquire.lookasides import LATE_LOOKASIDES, LOOKASIDES
from thunder_core.tracing.extension.lookaside import Lookaside, name_of


@dataclass(frozen=True)
class LookasideDescription:
    """A replaced function, by its dotted name, and a one-line summary of its replacement.

    `is_builtin` is True if Thunder itself replaces the function in every program, to trace its operations.
    """

    function: str
    summary: str
    is_builtin: bool


def lookasides(compiled: Callable[..., Any] | None = None) -> tuple[LookasideDescription, ...]:
    """Return the functions whose calls are replaced: by the lookasides of `compiled`, and then by Thunder's own.

    >>> import thunder_core as thunder
    >>> def silent(*values):
    ...     "Prints nothing."
    >>> compiled = thunder.jit(print, lookasides=[thunder.Lookaside(print, silent)])
    >>> thunder.lookasides(compiled)[0]
    LookasideDescription(function='builtins.print', summary='Prints nothing.', is_builtin=False)

    Raises `WrongInputs` if `compiled` was not compiled.
    """
    return (*_lookasides_of(compiled), *sorted(_builtin_lookasides(), key=lambda described: described.function))


def _lookasides_of(compiled: Callable[..., Any] | None) -> Iterator[LookasideDescription]:
    if compiled is not None:
        own_lookasides: tuple[Lookaside, ...] = specializations_of(compiled).compiler.settings.lookasides
        yield from (LookasideDescription(each.name, each.summary, is_builtin=False) for each in own_lookasides)


def _builtin_lookasides() -> Iterator[LookasideDescription]:
    named = [(name_of(function), handler) for function, handler in LOOKASIDES.items()]
    late = [(f"{module}.{name}", handler) for (module, name), handler in LATE_LOOKASIDES.items()]
    for name, handler in (*named, *late):
        summary = (inspect.getdoc(handler) or "").partition("\n")[0]
        yield LookasideDescription(name, summary, is_builtin=True)
