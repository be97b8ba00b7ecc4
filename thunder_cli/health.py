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
from huggingface_hub import constants

from thunder_cli.app import DISTRIBUTION
from thunder_cli.executor_trial import Trial, trials
from thunder_cli.views.quantity import size
from thunder_core import plugins
from thunder_core.cache import cache_folder
from thunder_core.claiming.executor import Executor
from thunder_core.errors import PythonNotSupported, ThunderError
from thunder_core.extension.requirement import CxxCompiler, cxx_name, problem_of_cxx
from thunder_core.interpreter.versions import require_supported
from thunder_core.tested_versions import TESTED, installed_version, is_allowed, is_tested, refusal

State = Literal["ok", "optional", "degraded", "missing"]
SPARE_DISK = 2 << 30  # bytes; an artifact of a small model with its kernels, and the cache of a compiler
STRANGERS = ("thunder", "lightning-thunder")
NEEDED = ("transformers", "safetensors", "huggingface_hub", "pydantic", "typer", "rich", "scipy")


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    `optional`: something more would work with it. `degraded`: what this machine should do does not work.
    """

    name: str
    state: State
    found: str
    fix: str = ""

    def as_data(self) -> dict[str, str]:
        """The check as plain data."""
        return asdict(self)


Examination = Callable[[], Iterator[Check]]
EXAMINATIONS: list[Examination] = []


def examination(function: Examination) -> Examination:
    """Enter a function into the table."""
    EXAMINATIONS.append(function)
    return function


def examine() -> Iterator[Check]:
    """Every check, in the order of this file, as soon as it is made."""
    return (check for function in EXAMINATIONS for check in function())


def verdict(name: str, holds: bool, found: str, fix: str, otherwise: State = "missing") -> Check:
    """A check that holds, or else the state and the fix."""
    return Check(name, "ok", found) if holds else Check(name, otherwise, found, fix)


@examination
def python() -> Iterator[Check]:
    """Whether this Python is one whose bytecode the interpreter knows."""
    try:
        require_supported()
    except PythonNotSupported as error:
        yield Check("python", "missing", error.what, error.fix)
    else:
        yield Check("python", "ok", platform.python_version())


@examination
def pytorch() -> Iterator[Check]:
    """The release of PyTorch, and what becomes of a release that the tests were never run on."""
    version = str(torch.__version__)
    if is_tested("torch", version):
        yield Check("torch", "ok", version)
    else:
        state: State = "degraded" if is_allowed() else "missing"
        yield Check("torch", state, told_version("torch", version), refusal(version).fix)


@examination
def packages() -> Iterator[Check]:
    """The libraries that nothing works without."""
    for name in NEEDED:
        if (version := installed_version(name)) is None:
            yield Check(name, "missing", "not installed", f"pip install {name}")
        else:
            yield Check(name, "ok", told_version(name, version))


def told_version(name: str, version: str) -> str:
    """A version, and the releases that the tests were run on where this is none of these."""
    if name not in TESTED or is_tested(name, version):
        return version
    return f"{version}, which was never tested; the tests were run on {TESTED[name]}"


@examination
def accelerator() -> Iterator[Check]:
    """The GPUs that PyTorch sees."""
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            major, minor = torch.cuda.get_device_capability(index)
            memory = size(torch.cuda.get_device_properties(index).total_memory)
            found = f"{torch.cuda.get_device_name(index)}, capability {major}.{minor}, {memory}"
            yield Check(f"cuda:{index}", "ok", found)
        return
    built = torch.version.cuda or torch.version.hip
    fix = "look at the driver and at CUDA_VISIBLE_DEVICES" if built else "for a GPU, install a CUDA build of PyTorch"
    yield Check("gpu", "optional", "PyTorch sees none" if built else "this build of PyTorch has no CUDA", fix)


@examination
def compiler() -> Iterator[Check]:
    """A C++ compiler, which compiles three lines; Inductor needs it to make kernels on a CPU."""
    problem = problem_of_cxx(cxx_name())
    without_it: State = "optional" if torch.cuda.is_available() else "degraded"
    found = problem or f"{shutil.which(cxx_name())}"
    yield verdict("c++ compiler", not problem, found, CxxCompiler().fix, without_it)


@examination
def executors() -> Iterator[Check]:
    """Each executor, tried on a small program, or what it lacks."""
    for listed in plugins.listing("executors"):
        yield executor(listed)


def executor(listed: plugins.Listed) -> Check:
    """One executor: what it lacks, or what came of trying it."""
    name = f"executor {listed.name}"
    more = f"`thunder executors {listed.name}` tells more; recipes go on without it"
    if listed.reason is not None:
        return Check(name, "optional", listed.reason, more)
    try:
        loaded: Executor = plugins.load("executors", listed.name).EXECUTOR
        reason = loaded.missing()
    except (ThunderError, ImportError, OSError) as error:
        return Check(name, "optional", str(error), more)
    if reason is not None:
        return Check(name, "optional", reason, more)
    return tested(name, list(trials(loaded)), more)


def tested(name: str, results: Sequence[Trial], more: str) -> Check:
    """The check of an executor that says that it can run: whether it did."""
    problems = "; ".join(f"on {one.device}: {one.problem}" for one in results if one.problem)
    if problems:
        return Check(name, "degraded", f"does not do what it says, {problems}", more)
    if not any(one.operations for one in results):
        return Check(name, "degraded", "took no operation of a program that was made for it", more)
    devices = " and ".join(one.device for one in results if one.operations)
    return Check(name, "ok", f"tried on {devices}, as eager PyTorch")


@examination
def hub() -> Iterator[Check]:
    """The places where models are looked for, and whether a network may be used."""
    folder = Path(constants.HF_HUB_CACHE)
    models = len(list(folder.glob("models--*"))) if folder.is_dir() else 0
    network = "offline" if constants.is_offline_mode() else "downloads allowed"
    yield Check("hub cache", "ok", f"{folder}, {models} model{'' if models == 1 else 's'}, {network}")


@examination
def folders() -> Iterator[Check]:
    """Whether our own cache and the working folder can be written, and have room."""
    for name, folder in (("cache folder", cache_folder()), ("working folder", Path.cwd())):
        standing = next(parent for parent in (folder, *folder.parents) if parent.exists())
        problem = unwritable(standing)
        free = shutil.disk_usage(standing).free
        found = f"{folder}, {problem or f'{size(free)} free'}"
        yield verdict(
            name, problem is None and free > SPARE_DISK, found, "make room or name another folder", "degraded"
        )


def unwritable(folder: Path) -> str | None:
    """The reason why a file cannot be made in a folder, or None."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return error.strerror or type(error).__name__


@examination
def names() -> Iterator[Check]:
    """Whether another distribution has taken our names: the command `thunder` or the module."""
    installed = [f"{name} {version}" for name in STRANGERS if (version := installed_version(name))]
    script = shutil.which("thunder")
    yield verdict(
        "name clash",
        not installed,
        f"installed: {', '.join(installed)}" if installed else f"none; the command is {script or 'not on PATH'}",
        f"{DISTRIBUTION} is imported as thunder_core and shares no module with them, but they may replace the "
        "command `thunder`: `python -m thunder_cli.main` is always ours",
        "optional",
    )
