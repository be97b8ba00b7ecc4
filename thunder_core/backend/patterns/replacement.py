"""Replacements: functions that executors call in place of patterns.

A replacement is used only if the rest of the program sees no difference.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from thunder_core.backend.patterns.outcome import FunctionOutcome, Outcomes, describe, trace_without_data
from thunder_core.backend.patterns.pattern import Pattern, line_of
from thunder_core.foundation.errors import BadPattern, ThunderError
from thunder_core.tracing.capture.symbolic.all_sizes import decide_sizes_of_one
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol, Symbol


@dataclass(eq=False)
class Replacement:
    """The function that an executor calls in place of a pattern, with the same arguments.

    `supports` says whether a match may be replaced. `meta` stands in for a function that cannot run on tensors without
    data (a function that launches a kernel): it returns tensors with the metadata of the results.
    """

    pattern: Pattern
    symbol: Symbol
    supports: Callable[[BoundSymbol], bool]
    meta: Callable[..., Any] | None = None
    _outcomes: Outcomes = field(default_factory=Outcomes, repr=False)

    def outcome(self, arguments: tuple[Any, ...], grad: bool, expected: FunctionOutcome) -> FunctionOutcome | str:
        """Return the outcome of the function, or the reason why it differs from the pattern's outcome.

        A program sees no difference under the conditions of both outcomes.
        """
        outcome_of: FunctionOutcome | str = self._outcomes.get(
            arguments, grad, lambda: self._try(arguments, grad, expected)
        )
        return outcome_of if isinstance(outcome_of, str) else self._difference(outcome_of, expected) or outcome_of

    def _difference(self, actual: FunctionOutcome, expected: FunctionOutcome) -> str | None:
        """Return a text that says how the results differ from the pattern's; None if no program sees a difference."""
        if actual.single != expected.single or len(actual.results) != len(expected.results):
            return f"{self.symbol.short_name} returns {_count_text(actual)}, the pattern {_count_text(expected)}"
        with_grad, environment = self.meta is None, actual.environment
        pairs = zip(actual.results, expected.results, strict=True)
        for ours, theirs in pairs:
            if describe(ours, with_grad, environment) != describe(theirs, with_grad, environment):
                return f"{self.symbol.short_name} returns {_describe(ours)}, the pattern {_describe(theirs)}"
        if self.meta is None and actual.shares != expected.shares:
            return f"{self.symbol.short_name} returns tensors that share memory differently from the pattern's"
        return None

    def _try(self, arguments: tuple[Any, ...], grad: bool, expected: FunctionOutcome) -> FunctionOutcome | str:
        function = self.meta or self.symbol.target
        try:
            run = trace_without_data(function, None, arguments, grad, expected.environment)
            if run.distinguishes_copies_from_views:
                with decide_sizes_of_one():
                    run = trace_without_data(function, None, arguments, grad, expected.environment)
        except Exception as error:  # the reason is reported, and the program runs as it was written
            message = error.what if isinstance(error, ThunderError) else error
            return f"{self.symbol.short_name} fails on tensors without data: {type(error).__name__}: {message}"
        if run.effects:
            return f"{self.symbol.short_name} has an effect: {', '.join(run.effects)}"
        return run.outcome


def replacement(
    of: Pattern,
    function: Callable[..., Any],
    *,
    supports: Callable[[BoundSymbol], bool] = lambda bsym: True,
    meta: Callable[..., Any] | None = None,
) -> Replacement:
    """Make a replacement of the pattern; raise `BadPattern` if the function cannot accept the pattern's arguments."""
    try:
        inspect.signature(function).bind(*of.parameters)
    except TypeError as error:
        names = ", ".join(parameter.name for parameter in of.parameters)
        raise BadPattern(
            f"{function.__name__!r} cannot replace the pattern {of.name!r}: {error}",
            fix=f"declare the pattern's parameters without a default, in the same order: ({names})",
            where=line_of(function),
        ) from error
    except ValueError:
        pass  # a C function without a signature
    return Replacement(of, Symbol.of_function(function), supports, meta)


def _count_text(outcome: FunctionOutcome) -> str:
    return "one tensor" if outcome.single else f"{len(outcome.results)} tensors"


def _describe(proxy: TensorProxy) -> str:
    grad = ", which requires grad" if proxy.requires_grad else ""
    return f"{proxy.described} with strides {list(proxy.stride)}{grad}"
