"""Writes docs/private_names.md from the sources: `python -m docs.private_names`."""

from __future__ import annotations

from pathlib import Path

from tests.versions.private_names import OPTIONAL, private_names

PAGE = Path(__file__).parent / "private_names.md"
HEAD = """\
# Private names of PyTorch

<!-- Written by `make docs` from the sources. -->

Thunder uses these names of PyTorch that begin with an underscore, or that a private module defines. PyTorch may change
them in any version. A test checks that the installed PyTorch has all of them. For a new version of PyTorch, run this
command in an environment with that version first:

    python -m tests.versions.private_names

It prints each missing name with the files that use it.

| name | files |
|---|---|
"""


def render() -> str:
    """Return the whole page."""
    rows = []
    for name, files in private_names().items():
        only = f" ({OPTIONAL[name]} only)" if name in OPTIONAL else ""
        rows.append(f"| `{name}`{only} | {', '.join(f'`{file}`' for file in files)} |")
    return HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
