"""Writes docs/errors.md, the page of exit statuses and error codes, from the classes in `thunder_core.errors`."""

from __future__ import annotations

import inspect
from pathlib import Path

from thunder_core.foundation.errors import ThunderError, all_errors

PAGE = Path(__file__).with_suffix(".md")

HEAD = """\
# Exit statuses and error codes

<!-- Written by `make docs` from thunder_core/foundation/errors/. -->

Each command of `thunder` ends with one of these statuses. An error prints its code, what is wrong and what to do
about it; `thunder explain CODE` prints what this page says, and `--debug` adds the traceback.
"""


def render() -> str:
    """Return the whole page."""
    return "\n".join(
        [HEAD, "| status | meaning |", "|---|---|", "| 0 | done |", *map(_row, branches()), "", *_leaves()]
    )


def branches() -> list[type[ThunderError]]:
    """Return one class for each status, in the order of the statuses."""
    return sorted(ThunderError.__subclasses__(), key=lambda branch: branch.status)


def _row(branch: type[ThunderError]) -> str:
    summary = inspect.cleandoc(branch.__doc__ or "").partition("\n")[0]
    return f"| {branch.status} | {summary.rstrip('.')} |"


def _leaves() -> list[str]:
    lines: list[str] = []
    for branch in branches():
        leaves = [error for error in all_errors() if error.status == branch.status]
        lines += [f"## Exit status {branch.status}", ""] if leaves else []
        for leaf in leaves:
            lines += [f"### {leaf.code} {leaf.__name__}", "", inspect.cleandoc(leaf.__doc__ or ""), ""]
    return lines


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
