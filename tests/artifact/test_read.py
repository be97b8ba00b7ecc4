"""Error messages about the data of an artifact."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from thunder_core.workflow.artifact.format.manifest import FileFacts
from thunder_core.workflow.artifact.format.read import first_of


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "Invalid JSON: EOF while parsing an object at line 1 column 1"),
        ('{"size": "a", "digest": ""}', "size: Input should be a valid integer"),
    ],
)
def test_an_error_of_data_names_the_place_only_if_there_is_one(content: str, words: str) -> None:
    with pytest.raises(ValidationError) as raised:
        FileFacts.model_validate_json(content)
    assert first_of(raised.value) == words
