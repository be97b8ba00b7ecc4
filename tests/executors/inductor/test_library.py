"""The number of compilers that run in parallel."""

from __future__ import annotations

import pytest

from thunder_executors.inductor import region_cache
from thunder_executors.inductor.building import library


@pytest.mark.parametrize(("free", "expected"), [(None, 4), (64 << 30, 4), (3 << 30, 3), (1 << 20, 1), (0, 1)], ids=str)
def test_compilers_are_limited_by_cores_and_available_memory(
    free: int | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: range(4))
    monkeypatch.setattr(library, "available_memory", lambda: free)
    assert library.compilers_at_once() == expected


def test_change_of_any_source_file_of_the_executor_rebuilds_cached_regions(tmp_path, monkeypatch):
    """The version in the cache key covers files in subfolders, such as the compiler flags in `building`."""
    monkeypatch.setattr(region_cache, "__file__", str(tmp_path / "region_cache.py"))
    (tmp_path / "building").mkdir()
    versions = []
    for text in ("FLAGS = ''", "FLAGS = '-O1'"):
        (tmp_path / "building" / "library.py").write_text(text)
        versions.append(region_cache.version.__wrapped__())
    assert versions[0] != versions[1]
