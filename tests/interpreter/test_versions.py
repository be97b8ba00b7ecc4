"""Untested versions and builds of Python are refused, and not treated as the newest known version."""

from __future__ import annotations

import re

import pytest

from tests.readme import ROOT
from thunder_core.foundation.errors import PythonNotSupported
from thunder_core.frontend.interpreter import entry, native, table, versions
from thunder_core.frontend.interpreter.versions import (
    ALLOW_VARIABLE,
    SUPPORTED_VERSIONS,
    UNTESTED_VERSIONS,
    Build,
    require_supported,
)

NEXT = (UNTESTED_VERSIONS[-1][0], UNTESTED_VERSIONS[-1][1] + 1)
UNKNOWN = {
    "instead of CPython": Build(implementation="pypy"),
    "32 bits": Build(pointer=4),
    "global interpreter lock": Build(free_threaded=True),
    "traces references": Build(traces_references=True),
}


@pytest.mark.parametrize("observed", [True, False])
def test_handlers_of_an_unknown_version_are_refused(observed):
    assert table.handlers(observed, SUPPORTED_VERSIONS[-1])["BINARY_OP"]
    for version in (NEXT, (3, 10), (4, 0)):
        with pytest.raises(PythonNotSupported, match=r"CPython 3\.11, 3\.12 and 3\.13, but this is Python"):
            table.handlers(observed, version)


@pytest.mark.parametrize("build", UNKNOWN.values())
def test_memory_of_an_unknown_build_is_not_touched(build):
    for offsets in (native.offsets_of(SUPPORTED_VERSIONS[-1], build), native.offsets_of(NEXT, Build())):
        with pytest.raises(PythonNotSupported):
            _ = offsets.frame_back


@pytest.mark.parametrize("words", UNKNOWN)
def test_a_build_is_named(words):
    with pytest.raises(PythonNotSupported, match=words) as caught:
        require_supported(SUPPORTED_VERSIONS[0], UNKNOWN[words])
    assert "CPython 3.11 to 3.13" in caught.value.fix


def test_the_running_python_has_offsets_handlers_and_no_problem():
    require_supported()
    assert set(native.OFFSETS) == {*SUPPORTED_VERSIONS, *UNTESTED_VERSIONS}
    assert not Build().problem


@pytest.mark.parametrize("version", UNTESTED_VERSIONS)
def test_untested_version_is_refused_until_the_user_allows_it(version, monkeypatch):
    monkeypatch.delenv(ALLOW_VARIABLE, raising=False)
    with pytest.raises(PythonNotSupported, match="but this is Python 3") as caught:
        table.handlers(True, version)
    assert f"{ALLOW_VARIABLE}=1" in caught.value.fix
    monkeypatch.setenv(ALLOW_VARIABLE, "1")
    rows = table.handlers(True, version)
    assert {"LOAD_SPECIAL", "BUILD_TEMPLATE", "LOAD_FAST_BORROW", "NOT_TAKEN"} - set(rows) == {"NOT_TAKEN"}
    assert native.offsets_of(version, Build()).empty == 1


@pytest.mark.parametrize("version", UNTESTED_VERSIONS)
def test_build_without_the_lock_is_refused_although_the_version_is_allowed(version, monkeypatch):
    monkeypatch.setenv(ALLOW_VARIABLE, "1")
    with pytest.raises(PythonNotSupported, match="without the global interpreter lock") as caught:
        require_supported(version, Build(free_threaded=True))
    assert ALLOW_VARIABLE not in caught.value.fix


@pytest.mark.parametrize("version", [NEXT, (3, 10)])
def test_unknown_version_is_refused_although_untested_versions_are_allowed(version, monkeypatch):
    monkeypatch.setenv(ALLOW_VARIABLE, "1")
    with pytest.raises(PythonNotSupported) as caught:
        require_supported(version)
    assert ALLOW_VARIABLE not in caught.value.fix


def test_nothing_is_interpreted_on_an_unknown_version(monkeypatch):
    monkeypatch.setattr(entry, "require_supported", lambda: versions.require_supported(NEXT))
    with pytest.raises(PythonNotSupported):
        entry.interpret(len)


def test_files_that_a_new_version_affects_are_listed():
    """CONTRIBUTING.md names exactly the files that check the version."""
    folder = ROOT / "thunder_core" / "frontend" / "interpreter"
    asks = re.compile(r"version_info|since=\(|until=\(|_3_\d+|OFFSETS|SUPPORTED_VERSIONS: ")
    asking = {
        str(path.relative_to(folder)) for path in folder.rglob("*.py") if asks.search(path.read_text(encoding="utf-8"))
    }
    _, _, section = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Another version of Python\n")
    listed = set(re.findall(r"^\| `([\w/]+\.py)` \|", section.partition("\n## ")[0], re.MULTILINE))
    assert asking <= listed
    assert all((folder / name).is_file() for name in listed)


def test_package_metadata_has_the_same_versions():
    low, high = SUPPORTED_VERSIONS[0], SUPPORTED_VERSIONS[-1]
    assert f'requires-python = ">=3.{low[1]},<3.{high[1] + 1}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
