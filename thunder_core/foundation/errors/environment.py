"""Errors of exit status 3: the machine or the environment lacks a requirement."""

from __future__ import annotations

from thunder_core.foundation.errors.tree import MissingRequirement


class EnvironmentLacks(MissingRequirement):
    """The recipe needs hardware or a package that this machine lacks, and `--strict` was given.

    Without `--strict`, the recipe skips the parts that need the hardware or the package, and the report says so.
    """

    code = "TH0301"


class DeviceNotAvailable(MissingRequirement):
    """The requested device does not exist, or this build of PyTorch cannot use it.

    Use `--device cpu`, or install a build of PyTorch for the device. `thunder doctor` shows the devices of this
    machine. `--target` compiles for a GPU that the machine does not have.
    """

    code = "TH0302"


class PackageMissing(MissingRequirement):
    """The model needs a package that is not installed; the message names the package.

    Install the package with `pip install`.
    """

    code = "TH0303"


class CompilerFailed(MissingRequirement):
    """The C++ compiler that Inductor's kernels need is missing or fails; the message quotes its first error.

    Install g++ and Python's headers (Debian: `apt install g++ python3-dev`), or set `CXX` to a compiler. `thunder
    doctor` checks the compiler. `--without inductor` needs no compiler, but fuses nothing.
    """

    code = "TH0304"


class PythonNotSupported(MissingRequirement):
    """Thunder does not support this version or build of Python.

    Thunder traces programs by interpreting CPython bytecode, which changes with every minor version. Thunder therefore
    refuses versions that are newer than those in the message. Thunder also refuses PyPy, 32-bit builds and
    free-threaded builds (without the global interpreter lock), because their objects have another memory layout.
    """

    code = "TH0305"


class OutsideProcessGroup(MissingRequirement):
    """A recipe for parallel training was used in a process without a process group of `torch.distributed`.

    Start one process for each rank with `torchrun`, and call `torch.distributed.init_process_group`.
    """

    code = "TH0307"


class TorchNotTested(MissingRequirement):
    """The tests of Thunder were never run on the installed release of PyTorch.

    Thunder uses private names of PyTorch, which each release may change. On a release that was never tested, Thunder's
    programs were never compared with eager PyTorch, so Thunder refuses this release. The environment variable
    `THUNDER_ALLOW_UNTESTED_TORCH=1` or the option `--allow-untested-torch` allows it.
    """

    code = "TH0306"
