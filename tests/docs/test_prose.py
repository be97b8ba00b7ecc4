"""The prose of the pages: short sentences, and the terms that PyTorch's users know."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.readme import ROOT

GENERATED = {
    "cli",
    "errors",
    "recipes",
    "coverage",
    "coverage_symbolic",
    "coverage_vmap",
    "models",
}  # their texts are in other files
WAITING: set[str] = set()
PAGES = [
    *("README.md", "CONTRIBUTING.md", "recipes/README.md", "executors/README.md"),
    *(f"docs/{path.stem}.md" for path in sorted((ROOT / "docs").glob("*.md")) if path.stem not in GENERATED | WAITING),
]
WORDS = 38  # words in a sentence, not counting parentheses
# Phrases that are hard to read, or words of our own for which PyTorch's users have a term.
ODD = re.compile(
    r"\b(beside eager|is told|are told|drawn inputs|inputs are drawn|anew|in whatever order|whoever|go on with|"
    r"look after|that there are|which there are|middle half|of which|those that|one that|whatever was|no more|"
    r"held against|without a word|stands? beside|lies beside|what is told|as ever)\b",
    re.IGNORECASE,
)


def paragraphs(page: str) -> Iterator[str]:
    """The paragraphs and list items of a page, without code, tables and headings."""
    text = re.sub(r"^ *```.*?^ *```$", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^(\||#|    |<|  <).*$", "", text, flags=re.MULTILINE)
    yield from (" ".join(part.split()) for part in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", text))


@pytest.mark.parametrize("page", PAGES)
def test_no_page_holds_an_odd_phrase(page):
    assert [paragraph for paragraph in paragraphs(page) if ODD.search(paragraph)] == []


@pytest.mark.parametrize("page", PAGES)
def test_sentences_of_a_page_are_short(page):
    sentences = [
        sentence
        for paragraph in paragraphs(page)
        for sentence in re.split(r"(?<=[.!?:;])\**\s+", re.sub(r"\([^()]*\)", "", paragraph))
    ]
    assert sentences
    assert [sentence for sentence in sentences if len(sentence.split()) > WORDS] == []
