"""No loop binds one name twice, so that a comparison of its variables compares two values."""

from __future__ import annotations

import re

import pytest

from tests.readme import ROOT

pytestmark = pytest.mark.source
TWICE = re.compile(r"\bfor \(?(?!_\b)(\w+), (?:\w+, )*\1\b[\w, ()]* in ")
FOLDERS = ("thunder_core", "thunder_cli", "executors", "recipes", "benchmarks", "docs", "tests")


def test_the_pattern_finds_a_name_that_is_bound_twice() -> None:
    assert TWICE.search("for leaf, leaf in pairs:")
    assert TWICE.search("any(a == a for (a, b, a), c in rows)")
    assert not TWICE.search("for leaf, leaves in pairs:")
    assert not TWICE.search("for _, _ in pairs:")


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_loop_binds_each_name_once(folder: str) -> None:
    files = [file for file in (ROOT / folder).rglob("*.py") if file.name != "test_loop_variables.py"]
    assert files
    texts = ((file, file.read_text(encoding="utf-8")) for file in files)
    assert [f"{file}: {match[0]}" for file, text in texts for match in TWICE.finditer(text)] == []
