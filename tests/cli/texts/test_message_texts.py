"""Error messages and fixes contain no phrase that is hard to read."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.source

ROOT = Path(__file__).parents[3]
FOLDERS = ("thunder_core", "thunder_cli", "executors", "recipes")
# Foreign word order, pronouns without a noun, and words of our own for which PyTorch's users have a term.
BANNED = re.compile(
    r"\b(acquire[sd]?|beside|tells?|told|anew|mend|cannot be one|not to be had|what is compiled|outside of what|"
    r"lies? in no|nobody|holds no|say(s)? nothing|so that it|by which|in place of|in the place|of its own kind|"
    r"(?<!there )(is|are) no (?!longer)\w+|which there|that there (is|are)|leave (?!it\b)[\w{}.'-]+ out\b(?! of)|"
    r"drawn|and was (given|asked)|look(s)? (at|into) (it|that|what))\b",
    re.IGNORECASE,
)


# An article before the name of a class, which may begin with a vowel: `a int`, `an uint8`.
ARTICLE = re.compile(r"\ban? \{[^{}]*(__name__|original_name|name_of\(|dtype)")


def text_of(node: ast.AST) -> str | None:
    """The text of a string or an f-string, with `{}` for each value; None for other nodes."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) or "{}" for part in node.values)
    return None


def messages(path: Path) -> Iterator[tuple[str, str]]:
    """The message and the fix of each error in a file, with its line."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and any(keyword.arg == "fix" for keyword in node.keywords):
            parts = [*node.args[:1], *(keyword.value for keyword in node.keywords if keyword.arg == "fix")]
            for part in (inner for outer in parts for inner in ast.walk(outer)):
                if (text := text_of(part)) is not None:
                    yield f"{path.relative_to(ROOT)}:{part.lineno}", text


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_message_holds_an_odd_phrase(folder):
    files = sorted((ROOT / folder).rglob("*.py"))
    found = [pair for path in files for pair in messages(path)]
    assert len(found) > 4
    assert {place: text for place, text in found if BANNED.search(text)} == {}


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_article_stands_before_the_name_of_a_class(folder):
    lines = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if ARTICLE.search(line)
    ]
    assert lines == []
