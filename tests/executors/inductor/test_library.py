"""The number of compilers that run in parallel."""

from __future__ import annotations

import pytest

from thunder_executors.inductor.building import library


@pytest.mark.parametrize(("free", "expected"), [(None, 4), (64 << 30, 4), (3 << 30, 3), (1 << 20, 1), (0, 1)], ids=str)
def test_compilers_are_limited_by_cores_and_available_memory(
    free: int | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: range(4))
    monkeypatch.setattr(library, "available_memory", lambda: free)
    assert library.compilers_at_once() == expected
