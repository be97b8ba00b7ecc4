"""Writes the table of wings and rooms in docs/design.md: `python -m docs.wings`; a test compares it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "design.md"
BEGIN, END = "<!-- Written by `make docs`: wings -->\n", "<!-- end of wings -->\n"

# The wings of `thunder_core` from the lowest up, and the levels of the rooms in each. A room imports rooms of lower
# levels and lower wings; rooms of the same level do not import each other.
WINGS = {
    "foundation": (
        ("own_builtins", "printable", "package", "progress_marks", "quick_objects", "rooms", "time_format"),
        ("errors",),
        ("similar_names", "tested_versions", "transformers_versions"),
        ("storage", "plugins", "options"),
    ),
    "tracing": (
        ("ir", "library"),
        ("analysis", "extension"),
        ("capture/torch_facts",),
        ("capture/symbolic",),
        ("capture/fakes",),
        ("capture",),
    ),
    "backend": (
        ("cache", "parallel", "quantization"),
        ("patterns", "runtime", "functionalization"),
        ("claiming",),
        ("fusion",),
    ),
    "passes": (
        ("recipe", "replay"),
        ("transforms",),
        ("autodiff/recomputation",),
        ("autodiff",),
    ),
    "frontend": (
        ("interpreter",),
        ("acquire/outside",),
        ("acquire/written",),
        ("acquire",),
    ),
    "compilation": (
        ("compiler",),
        ("dynamo", "gradients", "memory"),
    ),
    "workflow": (
        ("models", "benchmark"),
        ("validation",),
        ("fault_localization",),
        ("report",),
        ("artifact/trust",),
        ("artifact/format",),
        ("artifact/standalone",),
        ("artifact",),
        ("pipeline/request",),
        ("pipeline/session",),
        ("pipeline/generation", "pipeline/ranks"),
        ("pipeline",),
        ("inspect", "recipe_search"),
    ),
}
# The other packages, by the wing above which they are.
BESIDE = {
    "frontend": ("thunder_executors",),
    "compilation": ("thunder_recipes", "thunder_core.functional"),
    "workflow": ("thunder_cli",),
}


def storeys() -> Iterator[tuple[str, ...]]:
    """Yield the levels of all rooms, from the lowest up."""
    for wing, levels in WINGS.items():
        yield from (tuple(f"thunder_core.{wing}.{room.replace('/', '.')}" for room in level) for level in levels)
        yield from ((package,) for package in BESIDE.get(wing, ()))


def summary(wing: str) -> str:
    """Return the purpose of a wing: the docstring of its package, without the full stop."""
    tree = ast.parse((ROOT / "thunder_core" / wing / "__init__.py").read_text(encoding="utf-8"))
    return (ast.get_docstring(tree) or "").removesuffix(".")


def table() -> str:
    """Return the table of wings, from the top down, and the packages above wings."""
    rows = [f"| `{wing}/` | {summary(wing)} | {levels_of(wing)} |" for wing in reversed(WINGS)]
    beside = "; ".join(f"{' and '.join(f'`{name}`' for name in names)} on `{wing}`" for wing, names in BESIDE.items())
    return (
        "\n".join(
            ("| wing | purpose | rooms |", "|---|---|---|", *rows, "", f"Other packages above the wings: {beside}.")
        )
        + "\n"
    )


def levels_of(wing: str) -> str:
    """Return the rooms of a wing: levels from the top down, separated by semicolons."""
    return "; ".join(", ".join(f"`{room}`" for room in level) for level in reversed(WINGS[wing]))


def render(page: str) -> str:
    """Return the page with the table between its two marks."""
    return re.sub(
        f"{re.escape(BEGIN)}.*{re.escape(END)}", lambda _: f"{BEGIN}\n{table()}\n{END}", page, flags=re.DOTALL
    )


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
