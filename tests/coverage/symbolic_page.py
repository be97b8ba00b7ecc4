"""Write docs/coverage_symbolic.md, the table of operators with symbolic sizes, from the findings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "coverage_symbolic.md"
DIRECTIONS = ("forward", "backward")
Verdicts = Mapping[str, Mapping[str, Any]]
Passes = Callable[[Mapping[str, Any]], bool]

HEAD = """\
# Coverage with symbolic sizes

<!-- Written by `make coverage-symbolic`. -->

Every operator of PyTorch's own operator database, compiled with `cache="symbolic values"` and called with one of its
samples, and then with the same sample in other sizes: each dimension of three or more elements loses its last element,
and integers that may be indices of the lost elements are reduced by one. An operator is not listed if eager PyTorch
accepts none of its samples in other sizes. *Equal* counts the operators whose results and metadata, or gradients, match
eager in both calls. *By one program* counts the operators whose second call ran the program of the first call. A cell
shows the number of these samples and the number of all samples; the last column shows the reason of a second program.
"""


def render(found: Mapping[str, Verdicts]) -> str:
    """Return the whole page."""
    present = {name: verdicts for name, verdicts in found.items() if verdicts}
    return page(HEAD, shares(present, DIRECTIONS, ROWS), differing(present), _table(present))


def page(head: str, summary: Iterable[str], differing_operators: Sequence[str], table: Iterable[str]) -> str:
    """Return a page of a summary, the operators that differ from eager, and a table of all operators."""
    lines = [head, *summary, "", "## What does not pass", "", *(differing_operators or ["Nothing."])]
    return "\n".join([*lines, "", "## Operators", "", *table]) + "\n"


def is_equal(verdict: Mapping[str, Any]) -> bool:
    """Whether all samples match eager."""
    return not verdict["failed"]


def is_served(verdict: Mapping[str, Any]) -> bool:
    """Whether all samples match eager and one program served both sizes."""
    return is_equal(verdict) and not verdict["specialized"]


ROWS: Mapping[str, Passes] = {
    "equal": is_equal,
    "equal, by one program": is_served,
}


def shares(found: Mapping[str, Verdicts], columns: Sequence[str], rows: Mapping[str, Passes]) -> Iterator[str]:
    """Return a table of the number of operators that pass, by condition and by direction."""
    yield f"| operators | {' | '.join(columns)} |"
    yield "|---|" + "---|" * len(columns)
    for title, passes in rows.items():
        cells = []
        for column in columns:
            verdicts = [value[column] for value in found.values() if column in value]
            passed = sum(map(passes, verdicts))
            cells.append(f"{passed} of {len(verdicts)} ({100 * passed / max(len(verdicts), 1):.1f}%)")
        yield f"| {title} | {' | '.join(cells)} |"


def differing(found: Mapping[str, Verdicts]) -> list[str]:
    """Return a line for each operator whose result differs from eager PyTorch."""
    verdicts = [(name, direction, one) for name, both in found.items() for direction, one in both.items()]
    return [f"- `{name}` ({way}): {plain(one['failure'])}" for name, way, one in verdicts if one["failed"]]


def _table(found: Mapping[str, Verdicts]) -> Iterator[str]:
    yield "| name | forward | backward | specialized by |"
    yield "|---|---|---|---|"
    for name, verdicts in found.items():
        cells = [_cell(verdicts.get(direction)) for direction in DIRECTIONS]
        reasons = dict.fromkeys(
            plain(verdict["specialized_by"]) for verdict in verdicts.values() if verdict["specialized"]
        )
        yield f"| `{name}` | {' | '.join(cells)} | {'; '.join(reasons)} |"


def _cell(verdict: Mapping[str, Any] | None) -> str:
    if verdict is None:
        return ""
    served = verdict["tried"] - verdict["specialized"]
    text = str(served) if served == verdict["tried"] else f"{served} of {verdict['tried']}"
    return f"{text}, {verdict['failed']} differ" if verdict["failed"] else text


def plain(reason: str) -> str:
    """Return a reason as one line, without source locations in the test program and in PyTorch."""
    reason = re.sub(r", needed at \S*tests/coverage/[^,]*, in [^,]*", "", reason)
    reason = re.sub(r" ?\(?\S*/(?:tests|aten)/[^,:]*:\d+(?:, in [^)]*\))?:?", "", reason)
    return re.sub(r"([|\[])", r"\\\1", reason.replace("\n", " "))[:200]
