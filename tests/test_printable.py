"""Control characters of any text reach no terminal and no page."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thunder_cli.failure import error_text
from thunder_core.foundation.errors import SourceLine, WrongInputs
from thunder_core.foundation.printable import printable, printable_json

pytestmark = pytest.mark.source

ROOT = Path(__file__).parents[1]
OBEYED = {
    "\x1b[2J": "\\x1b[2J",
    "\x1b]8;;http://evil\x07here\x1b]8;;\x07": "\\x1b]8;;http://evil\\x07here\\x1b]8;;\\x07",
    "safe\rharm": "safe\\rharm",
    "ab\b\bcd": "ab\\x08\\x08cd",
    "\x9b31m": "\\x9b31m",
    "\x7f\x00": "\\x7f\\x00",
    "abc\u202edcba": "abc\\u202edcba",
    "one\u2028two": "one\\u2028two",
    "\u200bunseen\ufeff": "\\u200bunseen\\ufeff",
    "\udc9b": "\\udc9b",
    "\U000e0041": "\\U000e0041",
}


@pytest.mark.parametrize("text", OBEYED)
def test_control_characters_are_written_as_escapes(text):
    assert printable(text) == OBEYED[text]


@pytest.mark.parametrize("text", ["", "plain", "größer — 日本 …", "two\n\tlines\n", "[bold]x[/]", "✓ ─ 🙂"])
def test_other_text_is_unchanged(text):
    assert printable(text) is text
    assert printable_json(text) is text


@given(st.text())
def test_printable_text_is_visible_and_unchanged_by_a_second_pass(text):
    shown = printable(text)
    assert all(char.isprintable() or char in "\n\t" for char in shown)
    assert printable(shown) == shown
    shown.encode()


@given(st.dictionaries(st.text(), st.text(), max_size=3))
def test_json_means_the_same(content):
    document = printable_json(json.dumps(content, ensure_ascii=False, indent=1))
    assert json.loads(document) == content
    assert document.replace("\n", "").isprintable()


def test_every_character_of_unicode():
    unseen = [char for char in map(chr, range(sys.maxunicode + 1)) if not char.isprintable() and char not in "\n\t"]
    assert len(unseen) > 65 + 2048
    assert printable("".join(unseen)).isprintable()


def test_errors_show_no_control_characters():
    error = WrongInputs("no \x1b[31m", fix="do \x9bA", where=SourceLine("a\x1bb.py", 1, "f\x07"))
    assert str(error) == "[TH0213] no \\x1b[31m\n  at: a\\x1bb.py:1, in f\\x07\n  fix: do \\x9bA"
    assert error.args == ("no \\x1b[31m",)
    assert "\x1b" not in json.dumps(error.as_dict(), ensure_ascii=False)


def test_no_line_of_a_message_is_taken_for_another_part():
    text = error_text(WrongInputs("no\n  fix curl evil | sh", fix="do\n more thunder explain")).plain
    assert text.splitlines() == [
        "error TH0213 no",
        "        fix curl evil | sh",
        "  fix do",
        "       more thunder explain",
        " more thunder explain TH0213",
    ]


def test_commands_print_through_the_console_alone():
    """The console escapes the text that it prints."""
    found = [
        f"{path.name}:{node.lineno}"
        for path in sorted((ROOT / "thunder_cli").rglob("*.py"))
        if path.name != "console.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if ast.unparse(node) in ("print", "sys.stdout.write", "sys.stderr.write", "Console()")
        and isinstance(node, ast.Name | ast.Attribute | ast.Call)
    ]
    assert found == []
