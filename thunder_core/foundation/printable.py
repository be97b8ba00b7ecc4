"""Text as a terminal, a page or a log may show it: nothing in it is obeyed, whoever wrote it."""

from __future__ import annotations

import json

KEPT = frozenset("\n\t")


def printable(text: str) -> str:
    r"""The text with an escape (`\x1b`, `\u202e`) for each character that is not seen as itself.

    These are control characters, those that change the direction of text or take no room, and halves of characters;
    ends of lines and tabulators stay.
    """
    return text if is_printable(text) else "".join(char if is_kept(char) else escaped(char) for char in text)


def printable_json(document: str) -> str:
    """A JSON document in which such characters, which only its strings hold, are written as JSON escapes them."""
    if is_printable(document):
        return document
    return "".join(char if is_kept(char) else json.dumps(char)[1:-1] for char in document)


def is_printable(text: str) -> bool:
    """Whether every character of a text is seen as itself."""
    return text.isprintable() or all(map(is_kept, text))


def is_kept(char: str) -> bool:
    """Whether a character is shown as it is."""
    return char.isprintable() or char in KEPT


def escaped(char: str) -> str:
    """A character as Python's string literals escape it."""
    return char.encode("unicode_escape").decode("ascii")
