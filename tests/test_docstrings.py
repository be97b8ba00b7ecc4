"""Docstrings say what a thing is: none begins with a clause that has no subject ("What ...", "So is ...")."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

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
