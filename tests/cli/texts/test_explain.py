"""`thunder explain`: every code, and the nearest code for an unknown one."""

from __future__ import annotations

import pytest

from thunder_cli.commands.explain import complete_code, meaning, unwrap
from thunder_core.foundation.errors import all_errors

ERRORS = list(all_errors())


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.code)
def test_every_code_is_explained_by_its_docstring(thunder, error):
    done = thunder("explain", error.code.lower())
    assert done.status == 0
    assert done.err == ""
    assert error.code in done.out
    assert f"exit status {error.status}" in done.out
    assert meaning(error).split("\n")[0].split()[0] in done.out


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.code)
def test_every_explanation_goes_on_after_the_first_sentence(error):
    first, _, rest = meaning(error).partition("\n\n")
    assert len(first.split()) > 3
    assert len(rest.split()) > 5


def test_without_a_code_all_are_listed(thunder):
    done = thunder("explain", "--json")
    assert done.json["schema"] == "thunder.explain/1"
    assert [row["code"] for row in done.json["errors"]] == [error.code for error in ERRORS]
    assert all(error.code in thunder("explain").out for error in ERRORS)


def test_a_class_name_will_do(thunder):
    assert "TH0206" in thunder("explain", "OutputExists").out


def test_an_unknown_code_suggests_the_nearest(thunder):
    done = thunder("explain", "TH0604x")
    assert done.status == 2
    assert "did you mean TH0604" in done.err


def test_codes_are_completed():
    assert ("TH0301", meaning(next(e for e in ERRORS if e.code == "TH0301")).split("\n")[0]) in complete_code("th03")


def test_a_paragraph_is_wrapped_at_the_width_of_the_console():
    text = "The first\nparagraph.\n\nThe second\nparagraph."
    assert unwrap(text) == "The first paragraph.\n\nThe second paragraph."


def test_a_list_keeps_its_lines():
    text = "Modules:\n\n- the first\n  module;\n- the second."
    assert unwrap(text) == "Modules:\n\n- the first module;\n- the second."
