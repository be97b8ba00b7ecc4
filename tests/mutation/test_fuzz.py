"""A few of the random programs. `python -m tests.mutation.fuzz` runs any number."""

from __future__ import annotations

import warnings

import pytest

from tests.mutation.fuzz import WAYS, differences, program


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", range(0, 200, 20))
def test_random_programs_equal_eager(seed: int, way: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own warnings about outputs that are resized
        for number in range(seed, seed + 20):
            assert differences(program(number), way) == [], number


def test_a_program_that_is_compiled_wrongly_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from thunder_core.tracing.capture import operators

    monkeypatch.setattr(operators, "is_random", lambda operator, args, kwargs: False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert any(differences(program(number), "torch") for number in range(60))
