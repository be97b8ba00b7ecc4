"""Sketches: the calls that the function of a pattern makes, recorded by running the function on placeholders.

If the function branches on a fact that placeholders do not have, such as a shape, there is a sketch for each outcome. A
sketch is used only to search candidates for a match. A candidate is then proved by tracing the function on the metadata
of the candidate (see `thunder_core.backend.patterns.pattern`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from thunder_core.backend.patterns.placeholder import (
    Decisions,
    Node,
    Parameter,
    PatternRefused,
    PlaceholderCall,
    ResultItem,
    call_placeholder,
    decisions,
    is_placeholder,
    node_of,
    placeholder,
)
from thunder_core.foundation.errors import BadPattern, SourceLine
from thunder_core.tracing.ir.tree import leaves

MAX_PATHS = 16  # the number of combinations of branch outcomes that are run
PLACEHOLDER_FIX = (
    "call methods of tensors (`x.narrow(0, 0, n)`, `x.new_zeros(n)`) if an argument depends on shapes, "
    "dtypes or devices, and annotate parameters that are numbers (`dim: int`)"
)
ALLOWED_FIX = (
    "a pattern computes new tensors from its parameters; it writes to no tensor, reads no values and has no state"
)


@dataclass(frozen=True)
class Sketch:
    """The results of one run of a pattern's function on placeholders; the calls are reached from the results.

    `outputs` has the results in the order of the function's return value.
    """

    outputs: tuple[Any, ...]

    @cached_property
    def roots(self) -> tuple[Any, ...]:
        """The results in search order: the result with the most calls behind it comes last."""
        return tuple(sorted(self.outputs, key=lambda output: len(nodes_behind(output))))


def nodes_behind(*outputs: Any) -> set[Node]:
    """Return all placeholders' nodes (parameters and calls) that the outputs depend on."""
    reached: set[Node] = set()
    nodes = [node_of(output) for output in outputs if is_placeholder(output)]
    while nodes:
        node = nodes.pop()
        if node in reached:
            continue
        reached.add(node)
        if isinstance(node, ResultItem):
            nodes.append(node.call)
        elif isinstance(node, PlaceholderCall):
            nodes.extend(node_of(leaf) for leaf in leaves(dict(node.arguments)) if is_placeholder(leaf))
    return reached


class _Sketching(TorchFunctionMode):
    """A mode in which calls without placeholder arguments (`torch.arange(4)`) return placeholders too."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return call_placeholder(func, args, kwargs or {})


def sketches(function: Callable[..., Any], parameters: tuple[Parameter, ...], where: SourceLine | None) -> list[Sketch]:
    """Return the sketch of each combination of branch outcomes; raise `BadPattern` if all combinations fail."""
    result: list[Sketch] = []
    failures: list[BadPattern] = []
    branch_outcomes: Decisions | None = Decisions()
    while branch_outcomes is not None and len(result) + len(failures) < MAX_PATHS:
        try:
            result.append(_sketch(function, parameters, branch_outcomes, where))
        except BadPattern as error:  # for example, an `assert` about shapes fails for this combination
            failures.append(error)
        branch_outcomes = branch_outcomes.next_combination()
    if not result:
        raise failures[0]
    return result


def _sketch(
    function: Callable[..., Any],
    parameters: tuple[Parameter, ...],
    branch_outcomes: Decisions,
    where: SourceLine | None,
) -> Sketch:
    """Run the function on placeholders with the given outcomes of its branches; raise `BadPattern` if it fails."""
    decisions.append(branch_outcomes)
    try:
        # `__torch_function__` may be disabled: a program may import its executor while it runs.
        with torch._C._EnableTorchFunction(), _Sketching():
            output = function(**{parameter.name: placeholder(parameter) for parameter in parameters})
    except PatternRefused as error:
        raise BadPattern(
            f"the function {function.__name__!r} cannot be a pattern: {error}", fix=ALLOWED_FIX, where=where
        ) from error
    except Exception as error:
        message = str(error).partition("\n")[0]
        raise BadPattern(
            f"the pattern {function.__name__!r} fails on placeholders: {type(error).__name__}: {message}",
            fix=PLACEHOLDER_FIX,
            where=where,
        ) from error
    finally:
        decisions.pop()
    return Sketch(tuple(output) if isinstance(output, tuple | list) else (output,))
