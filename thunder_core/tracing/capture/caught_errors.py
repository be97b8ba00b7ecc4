"""Errors that depend on tensor values and that a program may catch: their lines, and the errors in the traced call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from thunder_core.foundation.errors import SourceLine, ThunderError
from thunder_core.tracing.analysis.data_errors import may_raise
from thunder_core.tracing.capture.data_dependent import DataDependentValues
from thunder_core.tracing.capture.failures import with_source_line
from thunder_core.tracing.capture.fakes.tensors import Tensors
from thunder_core.tracing.capture.torch_facts.symbols import symbol_of
from thunder_core.tracing.capture.values import Unknowable
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.library.objects import expect_error


class CaughtErrors:
    """The operations whose errors depend on tensor values, called at lines where the program catches errors.

    Such an operation is recorded as if it raised no error. If it raises in a later call, the program is traced again.
    Then the operations at `lines_that_raised` run on the values of the call, and their errors are raised at tracing.
    `lines` are the lines of operations whose errors the program catches. `is_caught()` returns whether the program
    catches an error at its present line.
    """

    def __init__(
        self,
        tensors: Tensors,
        values: DataDependentValues,
        line: Callable[[], SourceLine | None],
        emit: Callable[[BoundSymbol], None],
        is_caught: Callable[[], bool],
        lines_that_raised: frozenset[SourceLine],
    ) -> None:
        self.lines: set[SourceLine] = set()
        self.lines_that_raised = lines_that_raised
        self.is_caught = is_caught
        self._tensors = tensors
        self._values = values
        self._line = line
        self._emit = emit

    def note(self, bsym: BoundSymbol) -> None:
        """Record the line of a bound symbol that may raise depending on values, if the program may catch the error."""
        if may_raise(bsym):
            self.note_line(bsym.source)

    def note_line(self, line: SourceLine | None) -> None:
        """Record a line at which an operation may raise, if the program may catch the error."""
        if line is not None and line not in self.lines and self.is_caught():
            self.lines.add(line)

    @contextmanager
    def expecting(self, function: Callable[..., Any], args: object, kwargs: object) -> Iterator[None]:
        """If the operation in the block raises an error, record a check that each call raises this error, and raise the
        error.

        The operation runs in the block on the values of the traced call.
        """
        self.note_line(self._line())
        try:
            yield
        except ThunderError:
            raise
        except Exception as error:
            self._record_expected_error(error, function, args, kwargs)
            raise with_source_line(error.with_traceback(None), self._line()) from None

    def is_at_line_that_raised(self) -> bool:
        """Whether the program is at a line that has raised before; symbolic numbers are replaced by values there."""
        return bool(self.lines_that_raised) and self._line() in self.lines_that_raised

    def raise_as_in_call(self, function: Callable[..., Any], args: object, kwargs: object) -> None:
        """Raise the error of an operation in the traced call, if the program is at a line that has raised before.

        A bound symbol checks that the operation raises the same error at each call. If the values of the operation's
        arguments cannot be computed, nothing is raised.
        """
        if not self.is_at_line_that_raised():
            return
        try:
            self._values.evaluate(function, lambda: self._run_on_values(function, args, kwargs))
        except ThunderError:
            raise
        except Exception as error:
            self._record_expected_error(error, function, args, kwargs)
            raise error.with_traceback(None) from None

    def _record_expected_error(self, error: Exception, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
        """Record a bound symbol that checks that an operation raises this error at each call."""
        arguments = self._tensors.to_proxies((tuple(args), dict(kwargs)))
        expected = (function, type(error), str(error), *arguments)
        self._emit(BoundSymbol(symbol_of(expect_error), expected, {}, None, ordered=True))

    def _run_on_values(self, function: Callable[..., Any], args: object, kwargs: object) -> None:
        """Run an operation on the values of the call, if they can be computed."""
        with suppress(Unknowable):
            self._values.evaluation.call(function, args, kwargs)
