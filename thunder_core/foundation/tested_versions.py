"""The versions of PyTorch, Python and other libraries on which the tests have been run.

Importing this module imports no library: versions are read from the metadata of the installed packages.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from thunder_core.foundation.errors import TorchNotTested

Release = tuple[int, int]

ALLOW = "THUNDER_ALLOW_UNTESTED_TORCH"  # an environment variable; the option --allow-untested-torch sets it


@dataclass(frozen=True)
class TestedReleases:
    """The oldest and the newest release of a package on which the tests have been run (see docs/versions.md)."""

    oldest: Release
    newest: Release

    def __contains__(self, release: Release) -> bool:
        return self.oldest <= release <= self.newest

    def __str__(self) -> str:
        return f"{text_of(self.oldest)} to {text_of(self.newest)}"


# `tests/versions/record.py` runs the tests on another version and adds the counts to docs/versions.json.
TESTED: Mapping[str, TestedReleases] = MappingProxyType(
    {
        "torch": TestedReleases((2, 11), (2, 15)),
        "triton": TestedReleases((3, 6), (3, 9)),
        "transformers": TestedReleases((5, 17), (5, 24)),
    }
)


def text_of(release: Release) -> str:
    """Return a release as text: `2.14`."""
    return ".".join(map(str, release))


def release_of(version: str) -> Release | None:
    """Return the major and the minor number of a version such as `2.14.1+cu130`; None if it does not have both."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else None


def installed_version(package: str) -> str | None:
    """Return the version of an installed package, or None if the package is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def is_tested(package: str, version: str) -> bool:
    """Whether the tests have been run on the release of this version of a package."""
    release = release_of(version)
    return release is not None and release in TESTED[package]


def is_allowed() -> bool:
    """Whether the user allows versions of PyTorch that were never tested."""
    return os.environ.get(ALLOW, "").lower() in ("1", "true", "yes", "on")


def torch_version() -> str | None:
    """Return the version of the imported PyTorch; if PyTorch is not imported, of the installed package."""
    imported = getattr(sys.modules.get("torch"), "__version__", None)
    return installed_version("torch") if imported is None else str(imported)


def require_tested_torch() -> None:
    """Raise `TorchNotTested` if the tests were never run on the release of PyTorch, unless the user allows that."""
    version = torch_version()
    if version is not None and not is_tested("torch", version) and not is_allowed():
        raise refusal(version)


def refusal(version: str) -> TorchNotTested:
    """Return the error for a version of PyTorch on which the tests were never run."""
    tested = TESTED["torch"]
    after = text_of((tested.newest[0], tested.newest[1] + 1))
    return TorchNotTested(
        f"Thunder was tested with PyTorch {tested}, and never with PyTorch {version}, which is installed",
        fix=f"install a tested release (pip install 'torch>={text_of(tested.oldest)},<{after}'), or try this release "
        f"with {ALLOW}=1 in the environment or --allow-untested-torch after the command",
    )
