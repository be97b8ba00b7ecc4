"""Requirements of recipes, transforms and executors, and the fixes for requirements that are not met."""

from __future__ import annotations

import importlib.util
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


@dataclass(frozen=True)
class Degradation:
    """A part of a recipe that this machine cannot run, with the reason and a fix."""

    part: str
    reason: str
    fix: str


class LostPart(Protocol):
    """A part that was lost, of a recipe or of a report."""

    @property
    def part(self) -> str:
        """The name of the part."""

    @property
    def reason(self) -> str:
        """The reason why it was lost."""

    @property
    def fix(self) -> str:
        """The change that would bring it back."""


def by_reason(lost: Iterable[LostPart]) -> list[Degradation]:
    """Join the parts that have the same reason and fix, so that each reason is printed once."""
    parts: dict[tuple[str, str], list[str]] = {}
    for one in lost:
        parts.setdefault((one.reason, one.fix), []).append(one.part)
    return [Degradation(", ".join(names), reason, fix) for (reason, fix), names in parts.items()]


class Requirement(ABC):
    """A property that a machine has or lacks."""

    @property
    @abstractmethod
    def name(self) -> str:
        """In a few words, what is needed."""

    @property
    @abstractmethod
    def fix(self) -> str:
        """The advice to a user who wants to have it."""

    @abstractmethod
    def missing(self) -> str | None:
        """The reason why this machine lacks it; None if it has it."""

    def missing_for(self, target: str) -> str | None:  # noqa: ARG002
        """The reason where the program is for a GPU of an architecture (`sm_90`), which need not be here."""
        return self.missing()

    def missing_on(self, device: torch.device) -> str | None:  # noqa: ARG002
        """The reason for a model on a device, where the machine may have better ones."""
        return self.missing()


@dataclass(frozen=True)
class Cuda(Requirement):
    """An NVIDIA GPU of at least this compute capability (9.0 is Hopper), and a build of PyTorch that uses it."""

    capability: tuple[int, int] = (0, 0)

    @property
    def name(self) -> str:
        """For example `a CUDA GPU of compute capability 9.0`."""
        if self.capability == (0, 0):
            return "a CUDA GPU"
        return f"a CUDA GPU of compute capability {self.capability[0]}.{self.capability[1]}"

    @property
    def fix(self) -> str:
        """Another machine, another build, or the GPU of this one."""
        return f"run on a machine with {self.name} and a CUDA build of PyTorch, without --device cpu"

    def missing(self) -> str | None:
        """The reason: what is there instead."""
        if not torch.cuda.is_available():
            build = "is a CPU build" if torch.version.cuda is None else "finds none"
            return f"no CUDA GPU: PyTorch {torch.__version__} {build}"
        found = torch.cuda.get_device_capability()
        if found < self.capability:
            return f"{torch.cuda.get_device_name()} has compute capability {found[0]}.{found[1]}"
        return None

    def missing_for(self, target: str) -> str | None:
        """The reason where such a GPU can do less."""
        found = TARGETS[target]
        return f"{target} has compute capability {found[0]}.{found[1]}" if found < self.capability else None

    def missing_on(self, device: torch.device) -> str | None:
        """The reason where the model is elsewhere, or on a GPU that can do less than another one here."""
        if not torch.cuda.is_available():
            return self.missing()
        if device.type != "cuda":
            return f"the model is on the device {device}"
        found = torch.cuda.get_device_capability(device)
        if found < self.capability:
            return f"{torch.cuda.get_device_name(device)} has compute capability {found[0]}.{found[1]}"
        return None


@dataclass(frozen=True)
class Processor(Requirement):
    """A processor with one of these instruction sets, as Linux names them, for models on the CPU; GPUs have no need.

    Elsewhere than on Linux nothing is known, and nothing missing. `otherwise` names the recipe to take on a processor
    without them, where this one is slower than eager PyTorch.
    """

    instructions: tuple[str, ...]
    otherwise: str = ""

    @property
    def name(self) -> str:
        """For example `a processor with avx512_vnni or amx_int8`."""
        return f"a processor with {' or '.join(self.instructions)}"

    @property
    def fix(self) -> str:
        """Another machine, or another recipe."""
        slower = (
            f"; expect it to be slower than eager PyTorch here, and take {self.otherwise}" if self.otherwise else ""
        )
        return f"run on {self.name}{slower}"

    def missing(self) -> str | None:
        """The reason: none of the instruction sets is there."""
        found = instruction_sets()
        if not found or found & set(self.instructions):
            return None
        return f"the processor has none of {', '.join(self.instructions)}"

    def missing_for(self, target: str) -> str | None:  # noqa: ARG002
        """Nothing: the program is for a GPU."""
        return None

    def missing_on(self, device: torch.device) -> str | None:
        """The reason for a model on the CPU."""
        return self.missing() if device.type == "cpu" else None


@cache
def instruction_sets() -> frozenset[str]:
    """The instruction sets of this machine's CPU, as Linux names them; empty elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return frozenset()
    flags = next((line.partition(":")[2] for line in lines if line.startswith(("flags", "Features"))), "")
    return frozenset(flags.split())


@dataclass(frozen=True)
class Package(Requirement):
    """An installed Python package, by the name that it is imported by; `extra` is the extra that installs it."""

    package: str
    extra: str = ""

    @property
    def name(self) -> str:
        """The package."""
        return f"the package {self.package}"

    @property
    def fix(self) -> str:
        """The command that installs it."""
        return f'pip install "thunder-optimize[{self.extra}]"' if self.extra else f"pip install {self.package}"

    def missing(self) -> str | None:
        """The reason where it is not installed."""
        return None if importlib.util.find_spec(self.package) else f"{self.package} is not installed"


# What each kernel for the CPU needs: the headers of Python and OpenMP, and a linker.
CXX_PROBE = """#include <Python.h>
#include <omp.h>
extern "C" int threads() { return omp_get_max_threads(); }
"""
CXX_FLAGS = ("-shared", "-fPIC", "-fopenmp")
CXX_PATIENCE = 60  # seconds


@dataclass(frozen=True)
class CxxCompiler(Requirement):
    """A C++ compiler that makes extension modules of Python: the one that `CXX` names, or g++."""

    @property
    def name(self) -> str:
        """The compiler."""
        return "a C++ compiler"

    @property
    def fix(self) -> str:
        """The advice on what installs or names one."""
        return "install g++ and Python's headers (Debian: apt install g++ python3-dev), or set CXX to a compiler"

    def missing(self) -> str | None:
        """The reason where it is not there, or what it says of three lines; they are compiled once in a process."""
        problem = problem_of_cxx(cxx_name())
        return f"no C++ compiler: {problem}" if problem else None


def cxx_name() -> str:
    """The C++ compiler that CXX names, or g++."""
    return os.environ.get("CXX") or "g++"


@cache
def compiler_version(name: str) -> str:
    """A compiler by the first line that it prints about itself, which tells versions apart; empty for none."""
    path = shutil.which(name)
    if path is None:
        return ""
    told = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)  # noqa: S603
    return told.stdout.partition("\n")[0]


@cache
def problem_of_cxx(name: str) -> str:
    """The reason why a compiler makes no extension module of three lines, in its own words; empty where it does."""
    path = shutil.which(name)
    if path is None:
        return f"{name} is not there"
    try:
        with tempfile.TemporaryDirectory(prefix="thunder-") as folder:
            source, target = Path(folder) / "probe.cpp", Path(folder) / "probe.so"
            source.write_text(CXX_PROBE)
            command = [path, *CXX_FLAGS, f"-I{sysconfig.get_path('include')}", str(source), "-o", str(target)]
            told = subprocess.run(command, capture_output=True, text=True, check=False, timeout=CXX_PATIENCE)  # noqa: S603
            if told.returncode == 0 and target.is_file() and target.stat().st_size:
                return ""
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{path} does not run: {error}"
    said = first_error(told.stderr) if told.stderr.strip() else f"exit status {told.returncode}, without an output file"
    return f"{path} does not compile three lines of C++: {said}"


def first_error(told: str) -> str:
    """The line of a compiler's output that names the error."""
    lines = told.splitlines() or ["it printed nothing"]
    return next((line for line in lines if "error" in line.lower()), lines[-1])
