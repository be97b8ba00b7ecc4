"""The metadata of the wheel: pip accepts every tested release of PyTorch, and does not refuse a newer release."""

from __future__ import annotations

import contextlib
import importlib.metadata
from pathlib import Path

import hatchling.build
import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from docs.versions import RESOLVED
from tests.readme import ROOT
from thunder_core.foundation.tested_versions import TESTED, text_of
from thunder_core.frontend.interpreter.versions import SUPPORTED_VERSIONS

README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> importlib.metadata.Distribution:
    """The metadata of a wheel of this source tree."""
    folder = tmp_path_factory.mktemp("metadata")
    with contextlib.chdir(ROOT):
        name = hatchling.build.prepare_metadata_for_build_wheel(str(folder))
    return importlib.metadata.Distribution.at(Path(folder) / name)


def requirement_of(wheel: importlib.metadata.Distribution, package: str) -> Requirement:
    (found,) = {str(one.specifier): one for text in wheel.requires or () if (one := Requirement(text)).name == package
                and "dev" not in text}.values()  # fmt: skip
    return found


@pytest.mark.parametrize("package", TESTED)
def test_tested_and_newer_releases_are_taken_and_older_releases_are_refused(wheel, package):
    oldest, newest = TESTED[package].oldest, TESTED[package].newest
    accepted = requirement_of(wheel, package).specifier
    for minor in range(oldest[1], newest[1] + 1):
        assert f"{oldest[0]}.{minor}.0" in accepted
    assert f"{newest[0]}.{newest[1] + 1}.0" in accepted
    assert f"{newest[0] + 1}.0" in accepted
    assert f"{oldest[0]}.{oldest[1] - 1}.9" not in accepted


def test_builds_of_pytorch_are_taken(wheel):
    accepted = requirement_of(wheel, "torch").specifier
    newest = text_of(TESTED["torch"].newest)
    assert all(f"{newest}.1{build}" in accepted for build in ("", "+cpu", "+cu130", "+cu132"))


def test_releases_of_python_match_the_interpreter(wheel):
    accepted = SpecifierSet(wheel.metadata["Requires-Python"])
    assert [minor for minor in range(8, 20) if f"3.{minor}.1" in accepted] == [minor for _, minor in SUPPORTED_VERSIONS]


def test_pip_resolved_the_wheel_with_every_tested_release_of_pytorch():
    releases = {text_of(version) for version in (TESTED["torch"].oldest, TESTED["torch"].newest)}
    assert releases <= {version.rpartition(".")[0] for version in RESOLVED}


def test_readme_says_the_tested_releases_and_which_build_pip_takes():
    assert f"PyTorch {TESTED['torch']}" in README
    assert "`pip install torch` installs a CUDA build of several gigabytes from PyPI" in README
