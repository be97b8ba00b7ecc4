"""The benchmark of symbolic sizes runs and returns the figures of its table."""

from __future__ import annotations

import pytest

from benchmarks import dynamic


@pytest.fixture(autouse=True)
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dynamic, "EXECUTORS", ("torch",))


def test_a_single_program_is_compiled_for_all_lengths() -> None:
    found = dynamic.compilation("thunder", 1, 3, 2)
    assert found["programs"] == 1
    assert found["seconds"] > 0


def test_the_steady_state_compares_a_static_and_a_symbolic_program() -> None:
    found = dynamic.steady(1, 3)
    assert found["programs"] == 1
    assert {"static", "symbolic", "ratio", "static prologue", "symbolic prologue", "prologue ratio"} <= found.keys()
    assert all(value > 0 for value in found.values())


def test_the_ratio_is_to_the_better_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"thunder": 4.0, "torch.compile": 20.0, "torch.compile(dynamic=True)": 16.0}
    answers = {who: {"seconds": value, "programs": 1} for who, value in seconds.items()}
    monkeypatch.setattr(dynamic, "run_module", lambda module, what, who, *rest, **places: answers[who])
    assert dynamic.measure_lengths(1, 2, 2, runs=3)["ratio"] == 0.25
