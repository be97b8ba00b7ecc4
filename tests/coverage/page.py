"""Write docs/coverage.md, the table of all operators and modules, from the findings and the list of reasons."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.coverage.finding import DIRECTIONS
from tests.coverage.higher_order import HIGHER_ORDER
from tests.coverage.known import read_known_reasons

PAGE = Path(__file__).parents[2] / "docs" / "coverage.md"

STRICT = 'with `data_dependent="error"`'
HEAD = """\
# Coverage

<!-- Written by `make coverage`. -->

Every operator, every higher-order operator and every module of PyTorch's own databases, run under `jit` and compared
with eager PyTorch on the samples of the databases: a bounded number for each operator, data type and variant (function,
method, in place). *Forward* compares results with their metadata, the state of the random number generator, and the
state of modules. *Backward* compares the gradients of all differentiable inputs. *Second* compares the gradients of
these gradients, for two samples. *Errors* compares the exceptions for invalid arguments, by class and message. A cell
shows the number of equal samples and the number of all samples. A star marks operators that read the value of a tensor
for some samples, or whose shapes depend on a value: such values are guarded, and are refused with
`jit(..., data_dependent="error")`.
"""


def is_module(name: str) -> bool:
    """Whether an entry is a module."""
    return name.startswith("nn.") and not name.startswith("nn.functional.")


def render(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the whole page."""
    higher_order = {name: verdicts for name, verdicts in found.items() if name in HIGHER_ORDER}
    operators = {name: verdicts for name, verdicts in found.items() if not is_module(name) and name not in HIGHER_ORDER}
    modules = {name: verdicts for name, verdicts in found.items() if is_module(name)}
    groups = {"operators": operators, "higher-order operators": higher_order, "modules": modules}
    lines = [HEAD, *_shares(groups), "", "## What does not pass", "", *failing(found)]
    for title, entries in groups.items():
        lines += ["", f"## {title.capitalize()}", "", *_table(entries)]
    return "\n".join(lines) + "\n"


def _shares(groups: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Iterator[str]:
    yield f"| pass | {' | '.join(DIRECTIONS)} |"
    yield "|---|" + "---|" * len(DIRECTIONS)
    for title, found in groups.items():
        yield f"| {title} | {' | '.join(_share(found, direction, ('failed',)) for direction in DIRECTIONS)} |"
        shares = (_share(found, direction, ("failed", "guarded")) for direction in DIRECTIONS)
        yield f"| {title}, {STRICT} | {' | '.join(shares)} |"


def _share(found: Mapping[str, Mapping[str, Any]], direction: str, against: tuple[str, ...]) -> str:
    """Return the share of entries with samples of the direction that pass; `against` are counts that must be 0."""
    present = [verdicts[direction] for verdicts in found.values() if direction in verdicts]
    failures = [sum(item[count] for count in against) for item in present]
    if not failures:
        return ""
    passed = failures.count(0)
    return f"{passed} of {len(failures)} ({100 * passed / len(failures):.1f}%)"


def failing(among: Iterable[str]) -> Iterator[str]:
    """Return a line for each reason, with those of these names that are listed under it."""
    among = set(among)
    reasons: dict[str, dict[str, list[str]]] = {}
    for (direction, name), reason in read_known_reasons().items():
        if name in among:
            reasons.setdefault(reason, {}).setdefault(name, []).append(direction)
    for reason, names in reasons.items():
        entries = (f"`{name}` ({', '.join(directions)})" for name, directions in names.items())
        yield f"- {reason}: {', '.join(entries)}"


def _table(found: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    yield f"| name | data types | {' | '.join(DIRECTIONS)} |"
    yield "|---|---|" + "---|" * len(DIRECTIONS)
    for name, verdicts in found.items():
        dtypes = list(dict.fromkeys(dtype for verdict in verdicts.values() for dtype in verdict["dtypes"]))
        yield f"| `{name}` | {', '.join(dtypes)} | {' | '.join(_cell(verdicts, d) for d in DIRECTIONS)} |"


def _cell(verdicts: Mapping[str, Any], direction: str) -> str:
    one = verdicts.get(direction)
    if one is None:
        return ""
    passed = one["tried"] - one["failed"]
    text = f"{passed} of {one['tried']}" if one["failed"] else str(passed)
    return f"{text} *" if one["guarded"] else text
