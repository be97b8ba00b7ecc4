"""The docstrings of errors and warnings, which `thunder explain` prints, are short, plain sentences."""

from __future__ import annotations

import inspect
import re

import pytest

from tests.cli.texts.test_help import BANNED
from thunder_core.foundation import errors
from thunder_core.foundation.errors import ThunderError

LONGEST = 30  # words
CLASSES = [
    member
    for member in vars(errors).values()
    if inspect.isclass(member) and member is not ThunderError and issubclass(member, ThunderError | Warning)
]


def sentences(docstring: str) -> list[str]:
    """The sentences and list items of a text. A closing bracket does not end a sentence."""
    plain = re.sub(r"`[^`]*`", "CODE", inspect.cleandoc(docstring))
    return [part.strip() for part in re.split(r"(?<=[.;:])\s+|\n\n|\n- ", plain) if part.strip()]


def test_there_is_a_class_for_each_cause():
    assert len(CLASSES) > 60


@pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)
def test_the_first_line_is_a_sentence(error):
    first = inspect.cleandoc(error.__doc__).partition("\n")[0]
    assert re.match(r"[A-Z`]", first)
    assert first.endswith(".")
    assert not re.match(r"(What|Who|Where|Which|That|Those|As|It|This|So)\b", first)


@pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)
def test_sentences_are_short(error):
    assert [part for part in sentences(error.__doc__) if len(part.split()) > LONGEST] == []


@pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)
def test_no_odd_phrase(error):
    assert BANNED.findall(error.__doc__) == []
