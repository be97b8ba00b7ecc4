"""The validation inputs of an optimization: the inputs that were not traced, if a file has other inputs."""

from __future__ import annotations

from typing import Any

import pytest

from thunder_core.workflow.pipeline.request.purpose import Purpose

# Batches of the file, the number of traced ones -> the batches to validate on, and how many of them were traced.
OF_THREE = {
    (1, 1): ([0], 1),
    (2, 1): ([1], 0),
    (2, 2): ([0, 1], 2),
    (5, 1): ([1, 2, 3], 0),
    (5, 4): ([4], 0),
    (5, 5): ([0, 1, 2], 5),
    (2, 0): ([0, 1], 0),
}


@pytest.mark.parametrize(("count", "traced"), OF_THREE)
def test_traced_batches_are_validated_only_if_there_are_no_others(
    count: int, traced: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of two batches that were both traced is not treated like a file of one batch."""
    monkeypatch.setattr(Purpose, "batches", lambda *_, **__: range(count))
    data: Any = object()
    found = Purpose(data=data).numbers_to_validate_on(None, batch=1, seq=4, requested=3, traced=traced)  # type: ignore[arg-type]
    assert found == OF_THREE[count, traced]


def test_random_inputs_differ_from_the_traced_input() -> None:
    assert Purpose().numbers_to_validate_on(None, batch=1, seq=4, requested=3) == ([1, 2, 3], 0)  # type: ignore[arg-type]
