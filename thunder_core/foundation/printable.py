"""Text that is safe to show in a terminal, a page or a log: control characters are escaped."""

from __future__ import annotations

import json

UNESCAPED = frozenset("\n\t")


def printable(text: str) -> str:
    r"""Return the text with an escape (`\x1b`, `\u202e`) for each character that would not be visible as itself.

    The escaped characters are control characters, characters that change the direction of text or have no width, and
    surrogates. Line ends and tabs are not escaped.
    """
    return text if is_printable(text) else "".join(char if is_shown_unchanged(char) else escape(char) for char in text)


def printable_json(document: str) -> str:
    """Return a JSON document with JSON escapes for the characters that `printable` escapes."""
    if is_printable(document):
        return document
    return "".join(char if is_shown_unchanged(char) else json.dumps(char)[1:-1] for char in document)


def is_printable(text: str) -> bool:
    """Whether every character of a text is visible as itself."""
    return text.isprintable() or all(map(is_shown_unchanged, text))


def is_shown_unchanged(char: str) -> bool:
    """Whether a character is shown unchanged."""
    return char.isprintable() or char in UNESCAPED


def escape(char: str) -> str:
    """Return the escape of a character in a Python string literal."""
    return char.encode("unicode_escape").decode("ascii")
