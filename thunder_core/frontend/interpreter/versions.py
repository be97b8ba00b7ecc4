"""The builds of Python that the interpreter supports, by their bytecode and the memory layout of objects."""

import os
import platform
import struct
import sys
import sysconfig
from dataclasses import dataclass

from thunder_core.foundation.errors import PythonNotSupported

Version = tuple[int, int]

# A version must be checked before it is added here. CONTRIBUTING.md describes how.
SUPPORTED_VERSIONS: tuple[Version, ...] = ((3, 11), (3, 12), (3, 13))
# Versions whose bytecode is known, but on which the project's tests never ran with PyTorch. They are refused unless the
# user allows them.
UNTESTED_VERSIONS: tuple[Version, ...] = ((3, 14),)
ALLOW_VARIABLE = "THUNDER_ALLOW_UNTESTED_PYTHON"  # an environment variable
RUNNING_VERSION: Version = sys.version_info[:2]


@dataclass(frozen=True)
class Build:
    """The traits of a Python build that decide the memory layout of objects.

    `pointer` is the size of a pointer in bytes.
    """

    implementation: str = sys.implementation.name
    pointer: int = struct.calcsize("P")
    free_threaded: bool = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    traces_references: bool = hasattr(sys, "getobjects")

    @property
    def problem(self) -> str:
        """The unsupported traits of this Python, or an empty string."""
        problems = {
            f"{platform.python_implementation()} instead of CPython": self.implementation != "cpython",
            f"pointers of {8 * self.pointer} bits": self.pointer != 8,
            "the build without the global interpreter lock": self.free_threaded,
            "a build that traces references": self.traces_references,
        }
        return ", ".join(problem for problem, holds in problems.items() if holds)


def require_supported(version: Version = RUNNING_VERSION, build: Build = Build()) -> None:
    """Raise `PythonNotSupported` for a version that is neither supported nor allowed, or a build of unknown layout."""
    if version not in SUPPORTED_VERSIONS and not (version in UNTESTED_VERSIONS and allows_untested()):
        raise refusal(f"this is Python {_text(version)}", version)
    if problem := build.problem:
        raise refusal(f"this is Python {_text(version)}, {problem}")


def allows_untested() -> bool:
    """Whether the user allows Python versions on which the project's tests never ran."""
    return os.environ.get(ALLOW_VARIABLE, "").lower() in ("1", "true", "yes", "on")


def refusal(description: str, version: Version | None = None) -> PythonNotSupported:
    """Return the error for an unsupported Python, with the supported versions and, if possible, how to try this one."""
    versions = f"{', '.join(map(_text, SUPPORTED_VERSIONS[:-1]))} and {_text(SUPPORTED_VERSIONS[-1])}"
    return PythonNotSupported(
        f"Thunder supports the bytecode of CPython {versions}, but {description}",
        fix=f"use a standard 64-bit build of CPython {_text(SUPPORTED_VERSIONS[0])} to {_text(SUPPORTED_VERSIONS[-1])}"
        + (f", or try this version with {ALLOW_VARIABLE}=1 in the environment" if version in UNTESTED_VERSIONS else ""),
    )


def _text(version: Version) -> str:
    return ".".join(map(str, version))
