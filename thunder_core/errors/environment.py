"""Errors of exit status 3: the environment lacks something that was required."""

from __future__ import annotations

from thunder_core.errors.tree import MissingRequirement


class EnvironmentLacks(MissingRequirement):
    """The recipe needs hardware or a package that this machine lacks, and `--strict` was given.

    Without `--strict` the recipe does everything that does not need it, and the report is marked as degraded.
    """

    code = "TH0301"


class DeviceNotAvailable(MissingRequirement):
    """The device that was asked for is not there, or this build of PyTorch cannot use it."""

    code = "TH0302"


class PackageMissing(MissingRequirement):
    """The model that was given cannot be loaded without a package that is not installed; the message names it."""

    code = "TH0303"


class CompilerFailed(MissingRequirement):
    """The C++ compiler that Inductor's kernels need is missing, or fails; the message holds its first error."""

    code = "TH0304"


class PythonNotSupported(MissingRequirement):
    """The version of Python is not one whose bytecode is known, or its build lays out objects in another way.

    Programs are read from the bytecode of CPython, which is another one in each minor version. So a version that is
    newer than those that the message names is refused, not guessed at; and so are PyPy, 32-bit builds and the builds
    without the global interpreter lock.
    """

    code = "TH0305"


class TorchNotTested(MissingRequirement):
    """The tests of Thunder were never run on the installed release of PyTorch.

    Thunder uses private names of PyTorch, which each release may change. A release that was never tried is therefore
    refused, and a program does not run in a way that nobody has compared with eager PyTorch. The environment variable
    `THUNDER_ALLOW_UNTESTED_TORCH=1` and the option `--allow-untested-torch` lift the refusal.
    """

    code = "TH0306"
