"""Requirements of recipes, transforms and executors, and the fixes for requirements that are not met."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

import torch

from thunder_core.foundation.options.target import TARGETS
from thunder_core.foundation.plugins import is_installed


@dataclass(frozen=True)
class Degradation:
    """A part of a recipe that this machine cannot run, with the reason and a fix."""

    part: str
    reason: str
    fix: str


class UnavailablePart(Protocol):
    """A part of a recipe or of a report that was skipped."""

    @property
    def part(self) -> str:
        """The name of the part."""

    @property
    def reason(self) -> str:
        """The reason why the part was skipped."""

    @property
    def fix(self) -> str:
        """The change after which the part would not be skipped."""


def by_reason(skipped: Iterable[UnavailablePart]) -> list[Degradation]:
    """Join the skipped parts that have the same reason and fix, so that each reason is printed once."""
    part_names: dict[tuple[str, str], list[str]] = {}
    for unavailable in skipped:
        part_names.setdefault((unavailable.reason, unavailable.fix), []).append(unavailable.part)
    return [Degradation(", ".join(names), reason, fix) for (reason, fix), names in part_names.items()]


class Requirement(ABC):
    """A requirement on the machine: hardware, a package or a tool."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The required hardware, package or setting, in a few words."""

    @property
    @abstractmethod
    def fix(self) -> str:
        """The advice how to meet the requirement."""

    @abstractmethod
    def missing(self) -> str | None:
        """Return why this machine does not meet the requirement; None if it does."""

    def missing_for(self, target: str) -> str | None:  # noqa: ARG002
        """Return why a cross-compilation target (`sm_90`) does not meet the requirement; None if it does."""
        return self.missing()

    def missing_on(self, device: torch.device) -> str | None:  # noqa: ARG002
        """Return why a model on this device does not meet the requirement; None if it does."""
        return self.missing()


@dataclass(frozen=True)
class Cuda(Requirement):
    """An NVIDIA GPU of at least this compute capability (9.0 is Hopper), and a CUDA build of PyTorch."""

    capability: tuple[int, int] = (0, 0)

    @property
    def name(self) -> str:
        """The requirement in words, for example `a CUDA GPU of compute capability 9.0`."""
        if self.capability == (0, 0):
            return "a CUDA GPU"
        return f"a CUDA GPU of compute capability {self.capability[0]}.{self.capability[1]}"

    @property
    def fix(self) -> str:
        """The advice to use another machine, another build of PyTorch, or this machine's GPU."""
        return f"run on a machine with {self.name} and a CUDA build of PyTorch, without --device cpu"

    def missing(self) -> str | None:
        """Return the reason: no GPU, or the compute capability of the GPU."""
        if not torch.cuda.is_available():
            build = "is a CPU build" if torch.version.cuda is None else "finds none"
            return f"no CUDA GPU: PyTorch {torch.__version__} {build}"
        capability = torch.cuda.get_device_capability()
        if capability < self.capability:
            return f"{torch.cuda.get_device_name()} has compute capability {capability[0]}.{capability[1]}"
        return None

    def missing_for(self, target: str) -> str | None:
        """Return the reason if the architecture has a lower compute capability."""
        capability = TARGETS[target]
        return (
            f"{target} has compute capability {capability[0]}.{capability[1]}" if capability < self.capability else None
        )

    def missing_on(self, device: torch.device) -> str | None:
        """Return the reason if the model is on another device, or on a GPU of a lower compute capability."""
        if not torch.cuda.is_available():
            return self.missing()
        if device.type != "cuda":
            return f"the model is on the device {device}"
        capability = torch.cuda.get_device_capability(device)
        if capability < self.capability:
            return f"{torch.cuda.get_device_name(device)} has compute capability {capability[0]}.{capability[1]}"
        return None


@dataclass(frozen=True)
class Processor(Requirement):
    """A processor with one of these instruction sets, by their names in Linux, for models on the CPU.

    Models on a GPU do not need the instruction sets. On operating systems other than Linux, the instruction sets are
    unknown, and the requirement counts as met. `otherwise` is the recipe for processors without the instruction sets,
    on which the recipe with this requirement is slower than eager PyTorch.
    """

    instructions: tuple[str, ...]
    otherwise: str = ""

    @property
    def name(self) -> str:
        """For example `a processor with avx512_vnni or amx_int8`."""
        return f"a processor with {' or '.join(self.instructions)}"

    @property
    def fix(self) -> str:
        """The advice to use another machine, or another recipe."""
        slower = f"; expect it to be slower than eager PyTorch here, and use {self.otherwise}" if self.otherwise else ""
        return f"run on {self.name}{slower}"

    def missing(self) -> str | None:
        """Return the reason if the processor has none of the instruction sets."""
        available = instruction_sets()
        if not available or available & set(self.instructions):
            return None
        return f"the processor has none of {', '.join(self.instructions)}"

    def missing_for(self, target: str) -> str | None:  # noqa: ARG002
        """Return None, because the program is for a GPU."""
        return None

    def missing_on(self, device: torch.device) -> str | None:
        """Return the reason for a model on the CPU, and None on other devices."""
        return self.missing() if device.type == "cpu" else None


@cache
def instruction_sets() -> frozenset[str]:
    """Return the instruction sets of this machine's CPU, by their names in Linux; empty on other systems."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return frozenset()
    flags = next((line.partition(":")[2] for line in lines if line.startswith(("flags", "Features"))), "")
    return frozenset(flags.split())


@dataclass(frozen=True)
class Package(Requirement):
    """An installed Python package, by its name for `import`; `extra` is Thunder's extra that installs it."""

    package: str
    extra: str = ""

    @property
    def name(self) -> str:
        """The package in words."""
        return f"the package {self.package}"

    @property
    def fix(self) -> str:
        """The command that installs the package."""
        return f'pip install "thunder-optimize[{self.extra}]"' if self.extra else f"pip install {self.package}"

    def missing(self) -> str | None:
        """Return the reason if the package is not installed."""
        return None if is_installed(self.package) else f"{self.package} is not installed"


# A small C++ program with the needs of every CPU kernel: the headers of Python and OpenMP, and a linker.
CXX_PROBE = """#include <Python.h>
#include <omp.h>
extern "C" int threads() { return omp_get_max_threads(); }
"""
CXX_FLAGS = ("-shared", "-fPIC", "-fopenmp")
CXX_TIMEOUT = 60  # seconds that the compiler may take for the small program


@dataclass(frozen=True)
class CxxCompiler(Requirement):
    """A C++ compiler that can build extension modules of Python: the compiler in `CXX`, or g++."""

    @property
    def name(self) -> str:
        """The requirement in words: a C++ compiler."""
        return "a C++ compiler"

    @property
    def fix(self) -> str:
        """The advice on how to install or choose a compiler."""
        return "install g++ and Python's headers (Debian: apt install g++ python3-dev), or set CXX to a compiler"

    def missing(self) -> str | None:
        """Return the reason if the compiler is missing or cannot compile `CXX_PROBE`.

        The probe is compiled only once.
        """
        problem = problem_of_cxx(cxx_name())
        return f"no C++ compiler: {problem}" if problem else None


def cxx_name() -> str:
    """Return the name of the C++ compiler in CXX, or g++."""
    return os.environ.get("CXX") or "g++"


@cache
def compiler_version(name: str) -> str:
    """Return the first line of a compiler's `--version`; empty if the compiler is missing or cannot be started."""
    path = shutil.which(name)
    if path is None:
        return ""
    try:
        result = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)  # noqa: S603
    except OSError:  # for example, a script without an interpreter line
        return ""
    return result.stdout.partition("\n")[0]


@cache
def problem_of_cxx(name: str) -> str:
    """Return why a compiler cannot build `CXX_PROBE`, with the compiler's message; empty if it can."""
    path = shutil.which(name)
    if path is None and len(words := name.split()) > 1 and shutil.which(words[0]):
        return f"CXX is {name!r}, and PyTorch accepts only the name of one program, such as a script"
    if path is None:
        return f"{name} was not found"
    try:
        with tempfile.TemporaryDirectory(prefix="thunder-") as folder:
            source, target = Path(folder) / "probe.cpp", Path(folder) / "probe.so"
            source.write_text(CXX_PROBE)
            command = [path, *CXX_FLAGS, f"-I{sysconfig.get_path('include')}", str(source), "-o", str(target)]
            result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=CXX_TIMEOUT)  # noqa: S603
            if result.returncode == 0 and target.is_file() and target.stat().st_size:
                return ""
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{path} does not run: {error}"
    message = (
        first_error(result.stderr)
        if result.stderr.strip()
        else f"exit status {result.returncode}, without an output file"
    )
    return f"{path} does not compile three lines of C++: {message}"


def first_error(output: str) -> str:
    """Return the line of a compiler's output that contains the error."""
    lines = output.splitlines() or ["it printed nothing"]
    return next((line for line in lines if "error" in line.lower()), lines[-1])


def unmet_reason(need: Requirement, target: str = "", device: torch.device | None = None) -> str | None:
    """Return the reason why a requirement is not met; None if it is met.

    The requirement is checked for the GPU architecture `target`, or for a device, or for this machine.
    """
    if target:
        return need.missing_for(target)
    return need.missing() if device is None else need.missing_on(device)
