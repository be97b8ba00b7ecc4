"""Conditions on the sizes of a region are text that is evaluated as in Python."""

from __future__ import annotations

import pytest

from thunder_core.backend.fusion.conditions import size_of

SIZES = {"s0": 7, "s1": 3}


@pytest.mark.parametrize(
    "text",
    [
        "min(s0, 4)",
        "min(s0, s1, 5)",
        "max(s0 // 2, s1, 2)",
        "max(1, min(s0, s1), s1 - 4)",
        "s0 % 2 == 1 and s1 < s0 <= 7",
    ],
)
def test_text_is_evaluated_as_python_does(text: str) -> None:
    assert size_of(text, SIZES) == eval(text, dict(SIZES))
