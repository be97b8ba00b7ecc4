"""Split a stored backward into pieces: its source becomes a generator, which yields each group of gradients.

The function of a piece resumes the generator, and passes the generator to the function of the next piece.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from thunder_core.backend.parallel.backward_pieces import Groups, ends_of_pieces
from thunder_core.backend.runtime.generate import executable
from thunder_core.passes.autodiff.autograd_node import Backward
from thunder_core.tracing.ir.layout import INDENT
from thunder_core.tracing.ir.printer import Source

NAME = "backward"


def functions_of_pieces(source: Source, lines: Sequence[int], groups: Groups) -> Sequence[Backward]:
    """Return a function for each group of the gradients that a backward returns.

    `lines` are the indices of the statements after which the gradients are final. The first function takes the values
    of the backward, each other function the values that the previous function returned after the gradients.
    """
    generator = executable(replace(source, text=text_with_yields(source.text, lines, groups)), NAME)

    def start(values: list[Any]) -> Any:
        return resume([generator(values)])

    def resume(values: list[Any]) -> Any:
        iterator: Iterator[list[Any]] = values.pop()
        gradients = next(iterator)
        results = (*gradients, iterator)
        gradients.clear()  # the generator keeps the list; emptied, it no longer keeps the gradients alive
        return results

    return [start, *[resume] * (len(groups) - 1)]


def text_with_yields(text: str, lines: Sequence[int], groups: Groups) -> str:
    """Return the source of a backward as a generator, which yields each group of gradients instead of returning all."""
    statements = statements_of(text)
    returned = statements[-1]
    assert isinstance(returned, ast.Return)
    assert isinstance(returned.value, ast.Tuple | ast.List)
    gradients = [ast.unparse(node) for node in returned.value.elts]
    rows = text.splitlines()[: returned.lineno - 1]
    bounds = [0, *(statements[end - 1].end_lineno or 0 if end else 0 for end in ends_of_pieces(lines, groups)[:-1])]
    first = statements[0].lineno - 1
    list_name = unused_name(text)
    result = rows[:first]
    for group, (start, end) in zip(groups, pairwise([*bounds, len(rows)]), strict=True):
        result += rows[max(start, first) : end]
        result += rows_of_yield([gradients[position] for position in group], list_name)
    return "\n".join(result) + "\n"


def statements_of(text: str) -> list[ast.stmt]:
    """Return the statements of the function that a source defines, without definitions of inner functions."""
    (function,) = (node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef))
    return [node for node in function.body if not isinstance(node, ast.FunctionDef)]


def rows_of_yield(gradients: Sequence[str], list_name: str) -> Iterator[str]:
    """Yield the source lines that delete the names of the gradients, and then yield the gradients in a list."""
    yield f"{INDENT}{list_name} = [{', '.join(gradients)}]"
    names = dict.fromkeys(gradient for gradient in gradients if gradient.isidentifier() and gradient != "None")
    if names:
        yield f"{INDENT}del {', '.join(names)}"
    yield f"{INDENT}yield {list_name}"


def unused_name(text: str) -> str:
    """Return a name that does not occur in a text."""
    name = "group"
    while name in text:
        name += "_"
    return name
