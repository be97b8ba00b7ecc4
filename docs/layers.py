"""Write the table of layers and packages in docs/design.md: `python -m docs.layers`; a test compares it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "design.md"
BEGIN, END = "<!-- Written by `make docs`: layers -->\n", "<!-- end of layers -->\n"

# The layers of `thunder_core` from the lowest up, and in each layer the levels of its packages, from the lowest up. A
# package imports packages of lower levels and of lower layers. Packages of the same level do not import each other.
LAYERS = {
    "foundation": (
        (
            "descriptions",
            "memory_limits",
            "model_configs",
            "module_files",
            "own_builtins",
            "printable",
            "package",
            "progress_marks",
            "quick_objects",
            "short_names",
            "signal_handlers",
            "time_format",
            "type_flags",
        ),
        ("caller_frames", "errors"),
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
        ("acquire/codegen",),
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
# The packages outside of the layers, by the highest layer that they may import.
ABOVE = {
    "frontend": ("thunder_executors",),
    "compilation": ("thunder_recipes", "thunder_core.functional"),
    "workflow": ("thunder_cli",),
}


def levels() -> Iterator[tuple[str, ...]]:
    """Yield the levels of all packages, from the lowest up."""
    for layer, levels_within in LAYERS.items():
        yield from (
            tuple(f"thunder_core.{layer}.{package.replace('/', '.')}" for package in level) for level in levels_within
        )
        yield from ((package,) for package in ABOVE.get(layer, ()))


def summary(layer: str) -> str:
    """Return the purpose of a layer: the docstring of its package, without the full stop."""
    tree = ast.parse((ROOT / "thunder_core" / layer / "__init__.py").read_text(encoding="utf-8"))
    return (ast.get_docstring(tree) or "").removesuffix(".")


def table() -> str:
    """Return the table of layers, from the top down, and the packages above layers."""
    rows = [f"| `{layer}/` | {summary(layer)} | {levels_of(layer)} |" for layer in reversed(LAYERS)]
    above = "; ".join(f"{' and '.join(f'`{name}`' for name in names)} on `{layer}`" for layer, names in ABOVE.items())
    return (
        "\n".join(
            ("| layer | purpose | packages |", "|---|---|---|", *rows, "", f"Other packages above the layers: {above}.")
        )
        + "\n"
    )


def levels_of(layer: str) -> str:
    """Return the packages of a layer: levels from the top down, separated by semicolons."""
    return "; ".join(", ".join(f"`{package}`" for package in level) for level in reversed(LAYERS[layer]))


def render(page: str) -> str:
    """Return the page with the table between its two marks."""
    return re.sub(
        f"{re.escape(BEGIN)}.*{re.escape(END)}", lambda _: f"{BEGIN}\n{table()}\n{END}", page, flags=re.DOTALL
    )


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
