"""Some of the random programs; `python -m tests.layouts.fuzz` runs more."""

from __future__ import annotations

import pytest

from tests.layouts.fuzz import differences, program
from tests.layouts.unfaithful import UnfaithfulMode
from thunder_core.tracing.capture.fakes import fake
from thunder_executors.inductor import EXECUTOR


@pytest.mark.parametrize("first", range(0, 24, 12))
def test_gradients_match_eager_in_all_layouts(first: int) -> None:
    for number in range(first, first + 12):
        assert list(differences(program(number), "torch")) == [], number


def test_gradients_match_eager_in_regions_too() -> None:
    for number in range(200, 204):
        assert list(differences(program(number), "regions")) == [], number


@pytest.mark.skipif(EXECUTOR.missing() is not None, reason="needs a C++ compiler")
def test_gradients_match_eager_in_compiled_regions_too() -> None:
    """For this program, Inductor's result has other strides than PyTorch's in a dimension of size one."""
    assert list(differences(program(25), "inductor")) == []


def test_wrongly_recorded_layout_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake, "FaithfulMode", UnfaithfulMode)
    assert any(list(differences(program(number), "torch")) for number in range(8, 20))
