"""The checks of `thunder doctor`: one function each, in a table that a decorator fills."""

from __future__ import annotations

import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist
from huggingface_hub import constants

from thunder_cli.app import DISTRIBUTION
from thunder_cli.executor_trial import Trial, trials
from thunder_cli.process_group_trial import problem_of_group
from thunder_cli.views.quantity import count_noun, size
from thunder_core.backend.cache import cache_folder
from thunder_core.backend.claiming.executor import Executor
from thunder_core.foundation import plugins
from thunder_core.foundation.errors import PythonNotSupported, ThunderError
from thunder_core.foundation.tested_versions import TESTED, installed_version, is_allowed, is_tested, refusal
from thunder_core.frontend.interpreter.versions import require_supported
from thunder_core.tracing.extension.requirement import CxxCompiler, cxx_name, problem_of_cxx

State = Literal["ok", "optional", "degraded", "missing"]
SPARE_DISK = 2 << 30  # bytes: for an artifact of a small model with its kernels, and a compiler's cache
STRANGERS = ("thunder", "lightning-thunder")
NEEDED = ("transformers", "safetensors", "huggingface_hub", "pydantic", "typer", "rich", "scipy")
NO_DISTRIBUTED = "for several processes, install a build of PyTorch with torch.distributed"
# How to find the cause if processes cannot communicate; recipes for one process work all the same.
FIXES = {
    "gloo": "set GLOO_SOCKET_IFNAME to a network interface of this machine, such as lo; recipes for one process work "
    "without a group",
    "nccl": "run with NCCL_DEBUG=INFO to see the cause; recipes for one process work without a group",
}


@dataclass(frozen=True)
class Check:
    """The result of one check.

    `optional`: an optional feature is missing. `degraded`: a feature that this machine should have does not work.
    """

    name: str
    state: State
    found: str
    fix: str = ""

    def as_data(self) -> dict[str, str]:
        """Return the check as plain data."""
        return asdict(self)


Examination = Callable[[], Iterator[Check]]
EXAMINATIONS: list[Examination] = []


def examination(function: Examination) -> Examination:
    """Add a function to the table."""
    EXAMINATIONS.append(function)
    return function


def examine() -> Iterator[Check]:
    """Yield every check as soon as it is complete, in the order of this file."""
    return (check for function in EXAMINATIONS for check in function())


def verdict(name: str, holds: bool, found: str, fix: str, otherwise: State = "missing") -> Check:
    """Return a passed check, or a check with this state and fix."""
    return Check(name, "ok", found) if holds else Check(name, otherwise, found, fix)


@examination
def python() -> Iterator[Check]:
    """Check that Thunder supports this version of Python."""
    try:
        require_supported()
    except PythonNotSupported as error:
        yield Check("python", "missing", error.what, error.fix)
    else:
        yield Check("python", "ok", platform.python_version())


@examination
def pytorch() -> Iterator[Check]:
    """Check that this release of PyTorch has been tested with Thunder."""
    version = str(torch.__version__)
    if is_tested("torch", version):
        yield Check("torch", "ok", version)
    else:
        state: State = "degraded" if is_allowed() else "missing"
        yield Check("torch", state, version_text("torch", version), refusal(version).fix)


@examination
def packages() -> Iterator[Check]:
    """Check the required libraries."""
    for name in NEEDED:
        if (version := installed_version(name)) is None:
            yield Check(name, "missing", "not installed", f"pip install {name}")
        else:
            yield Check(name, "ok", version_text(name, version))


def version_text(name: str, version: str) -> str:
    """Return a version, with the tested releases if this version is none of them."""
    if name not in TESTED or is_tested(name, version):
        return version
    return f"{version}, which was never tested; the tests were run on {TESTED[name]}"


@examination
def accelerator() -> Iterator[Check]:
    """Report the GPUs that PyTorch finds."""
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            major, minor = torch.cuda.get_device_capability(index)
            memory = size(torch.cuda.get_device_properties(index).total_memory)
            description = f"{torch.cuda.get_device_name(index)}, capability {major}.{minor}, {memory}"
            yield Check(f"cuda:{index}", "ok", description)
        return
    built = torch.version.cuda or torch.version.hip
    fix = "check the driver and CUDA_VISIBLE_DEVICES" if built else "for a GPU, install a CUDA build of PyTorch"
    yield Check("gpu", "optional", "PyTorch finds no GPU" if built else "this build of PyTorch has no CUDA", fix)


@examination
def compiler() -> Iterator[Check]:
    """Check that a C++ compiler works, which Inductor needs for CPU kernels, by compiling three lines."""
    problem = problem_of_cxx(cxx_name())
    without_it: State = "optional" if torch.cuda.is_available() else "degraded"
    result = problem or f"{shutil.which(cxx_name())}"
    yield verdict("c++ compiler", not problem, result, CxxCompiler().fix, without_it)


@examination
def process_groups() -> Iterator[Check]:
    """Check that processes can communicate, by summing a tensor over two processes, or over one for each GPU."""
    if not dist.is_available():
        yield Check("gloo", "optional", "this build of PyTorch has no torch.distributed", NO_DISTRIBUTED)
        return
    if dist.is_gloo_available():
        yield process_group("gloo", 2)
    if torch.cuda.is_available() and dist.is_nccl_available():
        yield process_group("nccl", min(2, torch.cuda.device_count()))


def process_group(backend: str, size: int) -> Check:
    """Check one backend with a number of processes."""
    problem = problem_of_group(backend, size)
    count = count_noun(size, "process", "processes")
    result = f"{count}: {problem}" if problem else f"tried with {count}: the sum over the group is right"
    return verdict(backend, not problem, result, FIXES[backend], "degraded")


@examination
def executors() -> Iterator[Check]:
    """Check each executor by running a small program."""
    for listed in plugins.listing("executors"):
        yield executor(listed)


def executor(listed: plugins.Listed) -> Check:
    """Check one executor: report what it lacks, or the results of its trials."""
    name = f"executor {listed.name}"
    more = f"`thunder executors {listed.name}` shows details; recipes work without this executor"
    if listed.reason is not None:
        return Check(name, "optional", listed.reason, more)
    try:
        loaded: Executor = plugins.load("executors", listed.name).EXECUTOR
        reason = loaded.missing()
    except (ThunderError, ImportError, OSError) as error:
        return Check(name, "optional", str(error), more)
    if reason is not None:
        return Check(name, "optional", reason, more)
    return check_of_trials(name, list(trials(loaded)), more)


def check_of_trials(name: str, results: Sequence[Trial], more: str) -> Check:
    """Return the check of an available executor, by its trials."""
    problems = "; ".join(f"on {one.device}: {one.problem}" for one in results if one.problem)
    if problems:
        return Check(name, "degraded", f"fails a trial {problems}", more)
    if not any(one.operations for one in results):
        return Check(name, "degraded", "claims no operation of the trial program", more)
    devices = " and ".join(one.device for one in results if one.operations)
    return Check(name, "ok", f"tried on {devices}: the results match eager PyTorch")


@examination
def hub() -> Iterator[Check]:
    """Report the Hub's model cache, and whether downloads are allowed."""
    folder = Path(constants.HF_HUB_CACHE)
    models = len(list(folder.glob("models--*"))) if folder.is_dir() else 0
    network = "offline" if constants.is_offline_mode() else "downloads allowed"
    standing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    state = f"{folder}, {count_noun(models, 'model')}, {network}"
    if not standing.is_dir():
        state = f"{folder}, but {standing} is not a folder"
    yield verdict("hub cache", standing.is_dir(), state, "set HF_HOME to a folder", "degraded")


@examination
def folders() -> Iterator[Check]:
    """Check that the kernel cache and the working folder are writable and have free space."""
    for name, folder in (("cache folder", cache_folder()), ("working folder", Path.cwd())):
        standing = next(parent for parent in (folder, *folder.parents) if parent.exists())
        problem = unwritable(standing)
        free = shutil.disk_usage(standing).free
        state = f"{folder}, {problem or f'{size(free)} free'}"
        yield verdict(
            name, problem is None and free > SPARE_DISK, state, "free disk space or use another folder", "degraded"
        )


def unwritable(folder: Path) -> str | None:
    """Return the reason why a file cannot be created in a folder, or None."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return error.strerror or type(error).__name__


@examination
def names() -> Iterator[Check]:
    """Check whether another installed distribution also provides the command `thunder`."""
    installed = [f"{name} {version}" for name in STRANGERS if (version := installed_version(name))]
    script = shutil.which("thunder")
    yield verdict(
        "name clash",
        not installed,
        f"installed: {', '.join(installed)}" if installed else f"none; the command is {script or 'not on PATH'}",
        f"{DISTRIBUTION} is imported as thunder_core and shares no module with these packages, but they may replace "
        "the command `thunder`; `python -m thunder_cli.main` always runs this Thunder",
        "optional",
    )
