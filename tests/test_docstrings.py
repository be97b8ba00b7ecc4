"""Docstrings say what a thing is: none begins with a clause that has no subject ("What ...", "So is ...")."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from thunder_core.foundation.short_names import LAYER_OF, PACKAGE

pytestmark = pytest.mark.source

ROOT = Path(__file__).resolve().parent.parent
HEADLESS = re.compile(r"(What|Who|How|Why|Where|Which|That|Also|Those|Whoever|As|Of|So|See) |The same\b")
# Phrases that made readers read a sentence again. `tests/docs/test_prose.py` has those of the pages.
ODD = re.compile(
    r"\b(beside eager|(?:is|are) told|anew|whoever|whatever (?:was|is)|somebody|goe?s? on with|looks? after|"
    r"(?:lies?|stands?) beside|as ever|once more|held against|without a word|in whatever order|drawn inputs|"
    r"inputs are drawn|middle half|one certain|one that|those that|that there are|"
    r"what is (?:told|asked|given|left|made|kept)|leads? nowhere)\b",
    re.IGNORECASE,
)
FOLDERS = ("executors/thunder_executors", "recipes/thunder_recipes", "thunder_cli", "thunder_core")
DOCUMENTED = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def docstrings(folder: str) -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node)):
                yield f"{path.relative_to(ROOT)}:{getattr(node, 'name', '')}", text


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_are_not_headless(folder: str) -> None:
    found = [f"{place}: {text.splitlines()[0]}" for place, text in docstrings(folder) if HEADLESS.match(text)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_have_no_odd_phrases(folder: str) -> None:
    found = [f"{place}: {match.group(0)}" for place, text in docstrings(folder) if (match := ODD.search(text))]
    assert not found, "\n".join(found)


DOTTED = re.compile(r"`(thunder_(?:core|executors|recipes|cli)(?:\.[a-z_]\w*)+)`")
ROOTS = {"thunder_executors": ROOT / "executors", "thunder_recipes": ROOT / "recipes"}


def exists(path: str) -> bool:
    """Whether a dotted path is a module, perhaps by its short name, or a name in the source of its parent module."""
    root, package, *inner = path.split(".")
    layer = [LAYER_OF[package]] if root == PACKAGE and package in LAYER_OF else []
    base, (*parents, last) = ROOTS.get(root, ROOT), (root, *layer, package, *inner)
    module = base.joinpath(*parents)
    if (module / last).is_dir() or (module / f"{last}.py").is_file():
        return True
    sources = [file for file in (module / "__init__.py", module.with_suffix(".py")) if file.is_file()]
    return any(re.search(rf"\b{last}\b", file.read_text(encoding="utf-8")) for file in sources)


@pytest.mark.parametrize("folder", FOLDERS)
def test_paths_in_docstrings_name_existing_modules(folder: str) -> None:
    missing = [
        f"{place}: {path}" for place, text in docstrings(folder) for path in DOTTED.findall(text) if not exists(path)
    ]
    assert not missing, "\n".join(missing)
