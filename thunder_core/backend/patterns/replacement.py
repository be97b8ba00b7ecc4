"""Replacements: what an executor calls in place of a pattern, and whether it is the same to the rest of a program."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from thunder_core.backend.patterns.outcome import FunctionOutcome, Outcomes, described, trace_on
from thunder_core.backend.patterns.pattern import Pattern, line_of
from thunder_core.foundation.errors import BadPattern, ThunderError
from thunder_core.tracing.capture.symbolic.all_sizes import every_size_asked
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol, Symbol


@dataclass(eq=False)
class Replacement:
    """The function that an executor calls in place of a pattern, with the same arguments, and when it may.

    `meta` stands in for a function that cannot run on tensors without data (one that launches a kernel by itself):
    it returns tensors with the metadata of the results.
    """

    pattern: Pattern
    symbol: Symbol
    supports: Callable[[BoundSymbol], bool]
    meta: Callable[..., Any] | None = None
    _outcomes: Outcomes = field(default_factory=Outcomes, repr=False)

    def outcome(self, arguments: tuple[Any, ...], grad: bool, expected: FunctionOutcome) -> FunctionOutcome | str:
        """The outcome of the function for the arguments that the pattern has an outcome for, or why it is another one.

        It is the same to the rest of a program under the conditions of both.
        """
        outcome_of: FunctionOutcome | str = self._outcomes.get(
            arguments, grad, lambda: self._tried(arguments, grad, expected)
        )
        return outcome_of if isinstance(outcome_of, str) else self._difference(outcome_of, expected) or outcome_of

    def _difference(self, found: FunctionOutcome, expected: FunctionOutcome) -> str | None:
        """In what the results differ from the pattern's; None if in nothing that can be told."""
        if found.single != expected.single or len(found.results) != len(expected.results):
            return f"{self.symbol.short_name} returns {_counted(found)}, the pattern {_counted(expected)}"
        with_grad, environment = self.meta is None, found.environment
        pairs = zip(found.results, expected.results, strict=True)
        for ours, theirs in pairs:
            if described(ours, with_grad, environment) != described(theirs, with_grad, environment):
                return f"{self.symbol.short_name} returns {_told(ours)}, the pattern {_told(theirs)}"
        if self.meta is None and found.shares != expected.shares:
            return f"{self.symbol.short_name} returns tensors that share memory differently from the pattern's"
        return None

    def _tried(self, arguments: tuple[Any, ...], grad: bool, expected: FunctionOutcome) -> FunctionOutcome | str:
        function = self.meta or self.symbol.target
        try:
            run = trace_on(function, None, arguments, grad, expected.environment)
            if run.tells_copies_from_views:
                with every_size_asked():
                    run = trace_on(function, None, arguments, grad, expected.environment)
        except Exception as error:  # the reason is told; what runs instead is the program as it was written
            what = error.what if isinstance(error, ThunderError) else error
            return f"{self.symbol.short_name} fails on tensors without data: {type(error).__name__}: {what}"
        effects = [bsym.symbol.name for bsym in run.bound_symbols if bsym.has_effect and _reaches_out(bsym)]
        return f"{self.symbol.short_name} has an effect: {', '.join(effects)}" if effects else run.outcome


def replacement(
    of: Pattern,
    function: Callable[..., Any],
    *,
    supports: Callable[[BoundSymbol], bool] = lambda bsym: True,
    meta: Callable[..., Any] | None = None,
) -> Replacement:
    """The function in place of the pattern; `BadPattern` where it cannot take the pattern's arguments."""
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
        pass  # a function in C that does not tell its signature
    return Replacement(of, Symbol(f"{function.__module__}.{function.__qualname__}", function), supports, meta)


def _reaches_out(bsym: BoundSymbol) -> bool:
    """Whether the effect of a replacement's bound symbol can be seen: a write to an argument, or a change of state."""
    return bsym.ordered or any(name.startswith("x") for name in bsym.mutates)


def _counted(outcome: FunctionOutcome) -> str:
    return "one tensor" if outcome.single else f"{len(outcome.results)} tensors"


def _told(proxy: TensorProxy) -> str:
    grad = ", which requires grad" if proxy.requires_grad else ""
    return f"{proxy.described} with strides {list(proxy.stride)}{grad}"
