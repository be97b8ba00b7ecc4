"""Patterns: ordinary functions that describe the computations that an executor can replace.

A pattern is matched in two steps. First, the *sketch* of the function (the calls that it makes on placeholders) is
searched for in the trace, backwards from each bound symbol that may be the last. The search is quick, and yields the
tensors and numbers for the parameters. Second, the function itself is traced on tensors with exactly the metadata of
these tensors, in the same grad mode. Each aten operation of the function's trace must be one of the matched bound
symbols.

A call may therefore be written in any way that PyTorch accepts, and a conversion that changes nothing is ignored in the
pattern and in the program. Thunder has no equality rules of its own: the proof is at the aten level, where PyTorch has
already resolved methods, defaults and overloads. Traces of patterns are cached by the metadata of their arguments, so
all equal layers of a model need one trace.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from thunder_core.backend.patterns.outcome import FunctionOutcome, Outcomes, trace_without_data
from thunder_core.backend.patterns.placeholder import Parameter, PlaceholderCall, PlaceholderValue, ResultItem, node_of
from thunder_core.backend.patterns.sketch import ALLOWED_FIX, Sketch, nodes_behind, sketches
from thunder_core.foundation.errors import BadPattern, SourceLine

PARAMETER_TYPES: dict[object, type] = {torch.Tensor: torch.Tensor, int: int, float: float}
POSITIONAL = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(eq=False)
class Pattern:
    """A function whose computation is searched for in traces. A call of the pattern calls the function.

    `parameters` are the parameters without a default, which the search binds; a parameter with a default has the
    default value in every match. `refused` lists the candidates that were not replaced when a trace was last claimed:
    the source line and the reason.
    """

    function: Callable[..., Any]
    parameters: tuple[Parameter, ...]
    sketches: tuple[Sketch, ...]
    refused: list[str] = field(default_factory=list)
    _outcomes: Outcomes = field(default_factory=Outcomes, repr=False)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self.function(*args, **kwargs)

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.function.__name__

    @property
    def where(self) -> SourceLine | None:
        """The source line at which the function begins."""
        return line_of(self.function)

    def outcome(self, arguments: tuple[Any, ...], grad: bool) -> FunctionOutcome:
        """Return the outcome of the function for the arguments in a grad mode; raises the errors of the function."""
        outcome_of: FunctionOutcome = self._outcomes.get(arguments, grad, lambda: self._trace(arguments, grad))
        return outcome_of

    def _trace(self, arguments: tuple[Any, ...], grad: bool) -> FunctionOutcome:
        run = trace_without_data(self.function, self.parameters, arguments, grad)
        first = next((bsym for bsym in run.bound_symbols if bsym.has_effect), None)
        if first is not None:
            does = "writes to a tensor" if first.mutates else "draws random numbers or changes the state of the process"
            raise BadPattern(
                f"the pattern {self.name!r} {does} (`{first.symbol.name}`)", fix=ALLOWED_FIX, where=self.where
            )
        return run.outcome


def pattern(function: Callable[..., Any]) -> Pattern:
    """Make a pattern of an ordinary function of tensors and numbers.

    A parameter without a default matches any value in the program: a tensor, a number, a dtype. An annotation
    (`Tensor`, `int`, `float`) restricts the value; a number needs its annotation if the function passes it to PyTorch
    functions that accept only numbers. A parameter with a default is a constant. Raises `BadPattern` for a function
    that cannot be a pattern.

    >>> import torch
    >>> @pattern
    ... def swiglu(gate, up):
    ...     return torch.nn.functional.silu(gate) * up
    >>> [parameter.name for parameter in swiglu.parameters]
    ['gate', 'up']
    """
    if isinstance(function, Pattern):
        return function
    where = line_of(function)
    parameters = _parameters(function, where)
    sketches_of = sketches(function, parameters, where)
    for sketch in sketches_of:
        _check_sketch(function, parameters, sketch.outputs, where)
    return Pattern(function, parameters, tuple(sketches_of))


def line_of(function: Callable[..., Any]) -> SourceLine | None:
    """Return the source line at which a Python function begins."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return None if code is None else SourceLine(code.co_filename, code.co_firstlineno, code.co_name)


def _parameters(function: Callable[..., Any], where: SourceLine | None) -> tuple[Parameter, ...]:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise BadPattern(f"{function!r:.80} cannot be a pattern: {error}", fix="pass a Python function") from error
    if any(parameter.kind not in POSITIONAL for parameter in signature.parameters.values()):
        raise BadPattern(
            f"the pattern {function.__name__!r} takes a variable number of arguments",
            fix="name each parameter",
            where=where,
        )
    try:
        hints = typing.get_type_hints(function)
    except (NameError, TypeError, AttributeError):
        hints = {}
    required = [name for name, parameter in signature.parameters.items() if parameter.default is parameter.empty]
    return tuple(Parameter(name, PARAMETER_TYPES.get(hints.get(name))) for name in required)


def _check_sketch(
    function: Callable[..., Any], parameters: tuple[Parameter, ...], outputs: tuple[Any, ...], where: SourceLine | None
) -> None:
    """Raise `BadPattern` for a pattern that can never match."""
    name = function.__name__
    if not outputs or not all(
        isinstance(output, PlaceholderValue) and isinstance(node_of(output), PlaceholderCall | ResultItem)
        for output in outputs
    ):
        raise BadPattern(
            f"the pattern {name!r} returns something that it does not compute",
            fix="return the tensor, or the tuple of tensors, that the pattern computes",
            where=where,
        )
    read = nodes_behind(*outputs)
    if unread := [parameter.name for parameter in parameters if parameter not in read]:
        raise BadPattern(
            f"the pattern {name!r} does not use its parameter {', '.join(unread)} directly, so it gets no value",
            fix="pass each parameter unchanged to an operation that leads to a result, or give it a default",
            where=where,
        )
    if all(parameter.kind in (int, float) for parameter in parameters):
        raise BadPattern(
            f"the pattern {name!r} takes no tensor", fix="a pattern is a function of one or more tensors", where=where
        )
