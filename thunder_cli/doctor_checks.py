"""The checks of `thunder doctor`: functions in a table, each of which yields one or more results."""

from __future__ import annotations

import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist
from huggingface_hub import constants

from thunder_cli.app import DISTRIBUTION
from thunder_cli.executor_trial import Trial, run_trials
from thunder_cli.process_group_trial import problem_of_group
from thunder_cli.processor_support import CONVERTED, capability_in_words, dtypes_by_way, problem_of_widening
from thunder_cli.views.quantity import count_noun, format_bytes
from thunder_core.backend.cache import cache_folder
from thunder_core.backend.claiming.executor import Executor
from thunder_core.foundation import plugins
from thunder_core.foundation.errors import AmbiguousName, PythonNotSupported, ThunderError
from thunder_core.foundation.storage.nearest_existing import nearest_existing
from thunder_core.foundation.tested_versions import TESTED, installed_version, is_allowed, is_tested, refusal
from thunder_core.frontend.interpreter.versions import require_supported
from thunder_core.tracing.extension.processor import processor_name
from thunder_core.tracing.extension.requirement import CxxCompiler, cxx_name, instruction_sets, problem_of_cxx
from thunder_core.workflow.pipeline.request.narrow_dtypes import WIDENING

State = Literal["ok", "optional", "degraded", "missing"]
MIN_FREE_DISK = 2 << 30  # bytes, enough for the artifact of a small model with its kernels and for a compiler's cache
OTHER_THUNDERS = ("thunder", "lightning-thunder")
REQUIRED_LIBRARIES = ("transformers", "safetensors", "huggingface_hub", "pydantic", "typer", "rich", "scipy")
NO_DISTRIBUTED = "for several processes, install a build of PyTorch with torch.distributed"
# The fix for each backend of torch.distributed with which processes cannot communicate.
FIXES_OF_BACKENDS = {
    "gloo": "set GLOO_SOCKET_IFNAME to a network interface of this machine, such as lo; recipes for one process work "
    "without a group",
    "nccl": "run with NCCL_DEBUG=INFO to see the cause; recipes for one process work without a group",
}


@dataclass(frozen=True)
class CheckResult:
    """The state of one part of the environment, with a fix unless the part works.

    `found` describes the part, or the problem. The states are:

    - `ok`: the part works;
    - `optional`: the part is absent, and Thunder works without it;
    - `degraded`: the part does not work, was never tested or lacks disk space;
    - `missing`: a required library is not installed, a file hides Thunder's executors or recipes, or Thunder does not
      support this version of Python or PyTorch.
    """

    name: str
    state: State
    found: str
    fix: str = ""

    def as_data(self) -> dict[str, str]:
        """Return the result as plain data."""
        return asdict(self)


Check = Callable[[], Iterator[CheckResult]]
CHECKS: list[Check] = []


def doctor_check(function: Check) -> Check:
    """Add a function to the table of checks."""
    CHECKS.append(function)
    return function


def run_checks() -> Iterator[CheckResult]:
    """Yield every result as soon as its check is complete, in the order of this file."""
    return (result for check in CHECKS for result in check())


def result_of(name: str, passes: bool, description: str, fix: str, state_if_failed: State) -> CheckResult:
    """Return the result `ok` if the check passes; otherwise, return `state_if_failed` with the `fix`."""
    return CheckResult(name, "ok", description) if passes else CheckResult(name, state_if_failed, description, fix)


@doctor_check
def python() -> Iterator[CheckResult]:
    """Check that Thunder supports this version of Python."""
    try:
        require_supported()
    except PythonNotSupported as error:
        yield CheckResult("python", "missing", error.what, error.fix)
    else:
        yield CheckResult("python", "ok", platform.python_version())


@doctor_check
def pytorch() -> Iterator[CheckResult]:
    """Check that this release of PyTorch has been tested with Thunder."""
    version = str(torch.__version__)
    if is_tested("torch", version):
        yield CheckResult("torch", "ok", version)
    else:
        state: State = "degraded" if is_allowed() else "missing"
        yield CheckResult("torch", state, version_text("torch", version), refusal(version).fix)


@doctor_check
def packages() -> Iterator[CheckResult]:
    """Check the required libraries."""
    for name in REQUIRED_LIBRARIES:
        if (version := installed_version(name)) is None:
            yield CheckResult(name, "missing", "not installed", f"pip install {name}")
        else:
            yield CheckResult(name, "ok", version_text(name, version))


def version_text(name: str, version: str) -> str:
    """Return a version; if the release was never tested, the text also names the tested releases."""
    if name not in TESTED or is_tested(name, version):
        return version
    return f"{version}, which was never tested; the tests were run on {TESTED[name]}"


@doctor_check
def own_plugins() -> Iterator[CheckResult]:
    """Check that no file of the user hides Thunder's executors or recipes."""
    for group in plugins.OWN_PLUGINS:
        try:
            count = count_noun(len(plugins.names(group)), group.removesuffix("s"))
        except AmbiguousName as error:
            yield CheckResult(group, "missing", error.what, error.fix)
        else:
            yield CheckResult(group, "ok", count)


@doctor_check
def processor() -> Iterator[CheckResult]:
    """Report the processor's instruction sets, and how products in bfloat16, float16 and int8 are computed."""
    if not instruction_sets():
        yield CheckResult("processor", "ok", f"{processor_name()}; its instruction sets are known on Linux only")
        return
    problem = problem_of_widening()
    dtypes = dtypes_by_way(problem)
    ways = "; ".join(f"{', '.join(names)} {way}" for way, names in dtypes.items())
    fix = f"use float32 on this processor; {WIDENING} would widen narrow numbers, but {problem}"
    yield result_of("processor", CONVERTED not in dtypes, f"{capability_in_words()}. Products: {ways}", fix, "optional")


@doctor_check
def accelerator() -> Iterator[CheckResult]:
    """Report the GPUs that PyTorch finds."""
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            major, minor = torch.cuda.get_device_capability(index)
            memory = format_bytes(torch.cuda.get_device_properties(index).total_memory)
            description = f"{torch.cuda.get_device_name(index)}, capability {major}.{minor}, {memory}"
            yield CheckResult(f"cuda:{index}", "ok", description)
        return
    gpu_build = torch.version.cuda or torch.version.hip
    fix = "check the driver and CUDA_VISIBLE_DEVICES" if gpu_build else "for a GPU, install a CUDA build of PyTorch"
    yield CheckResult(
        "gpu", "optional", "PyTorch finds no GPU" if gpu_build else "this build of PyTorch has no CUDA", fix
    )


@doctor_check
def compiler() -> Iterator[CheckResult]:
    """Check that a C++ compiler compiles three lines; Inductor needs a compiler for CPU kernels."""
    problem = problem_of_cxx(cxx_name())
    state_if_failed: State = "optional" if torch.cuda.is_available() else "degraded"
    description = problem or f"{shutil.which(cxx_name())}"
    yield result_of("c++ compiler", not problem, description, CxxCompiler().fix, state_if_failed)


@doctor_check
def process_groups() -> Iterator[CheckResult]:
    """Check that processes can communicate: sum a tensor over two processes (gloo) and up to two GPUs (NCCL)."""
    if not dist.is_available():
        yield CheckResult("gloo", "optional", "this build of PyTorch has no torch.distributed", NO_DISTRIBUTED)
        return
    if dist.is_gloo_available():
        yield try_process_group("gloo", 2)
    if torch.cuda.is_available() and dist.is_nccl_available():
        yield try_process_group("nccl", min(2, torch.cuda.device_count()))


def try_process_group(backend: str, world_size: int) -> CheckResult:
    """Sum a tensor over `world_size` processes with a backend of torch.distributed."""
    problem = problem_of_group(backend, world_size)
    count = count_noun(world_size, "process", "processes")
    description = f"{count}: {problem}" if problem else f"tried with {count}: the sum over the group is right"
    return result_of(backend, not problem, description, FIXES_OF_BACKENDS[backend], "degraded")


@doctor_check
def executors() -> Iterator[CheckResult]:
    """Check each executor by running a small program, unless `own_plugins` has reported that they are hidden."""
    with suppress(AmbiguousName):
        for listed in plugins.listing("executors"):
            yield try_executor(listed)


def try_executor(listed: plugins.PluginDescription) -> CheckResult:
    """Run the trial program with an executor, unless this machine lacks something that the executor needs."""
    name = f"executor {listed.name}"
    fix = f"`thunder executors {listed.name}` shows details; recipes work without this executor"
    if listed.reason is not None:
        return CheckResult(name, "optional", listed.reason, fix)
    try:
        loaded: Executor = plugins.load("executors", listed.name).EXECUTOR
        reason = loaded.missing()
    except (ThunderError, ImportError, OSError) as error:
        return CheckResult(name, "optional", str(error), fix)
    if reason is not None:
        return CheckResult(name, "optional", reason, fix)
    return result_of_trials(name, list(run_trials(loaded)), fix)


def result_of_trials(name: str, completed: Sequence[Trial], fix: str) -> CheckResult:
    """Return the result for an executor from its completed trials, one for each device."""
    problems = "; ".join(f"on {trial.device}: {trial.problem}" for trial in completed if trial.problem)
    if problems:
        return CheckResult(name, "degraded", f"fails a trial {problems}", fix)
    if not any(trial.operations for trial in completed):
        return CheckResult(name, "degraded", "claims no operation of the trial program", fix)
    devices = " and ".join(trial.device for trial in completed if trial.operations)
    return CheckResult(name, "ok", f"tried on {devices}: the results match eager PyTorch")


@doctor_check
def hub() -> Iterator[CheckResult]:
    """Report the Hub's model cache, and whether downloads are allowed."""
    folder = Path(constants.HF_HUB_CACHE)
    models = len(list(folder.glob("models--*"))) if folder.is_dir() else 0
    network = "offline" if constants.is_offline_mode() else "downloads allowed"
    existing = nearest_existing(folder)
    description = f"{folder}, {count_noun(models, 'model')}, {network}"
    if not existing.is_dir():
        description = f"{folder}, but {existing} is not a folder"
    yield result_of("hub cache", existing.is_dir(), description, "set HF_HOME to a folder", "degraded")


@doctor_check
def folders() -> Iterator[CheckResult]:
    """Check that the kernel cache and the working directory are writable and have free space."""
    for name, folder in (("cache folder", cache_folder()), ("working folder", Path.cwd())):
        existing = nearest_existing(folder)
        problem = reason_not_writable(existing)
        free = shutil.disk_usage(existing).free
        passes, description = (
            problem is None and free > MIN_FREE_DISK,
            f"{folder}, {problem or f'{format_bytes(free)} free'}",
        )
        yield result_of(name, passes, description, "free disk space or use another folder", "degraded")


def reason_not_writable(folder: Path) -> str | None:
    """Return the reason why a file cannot be created in a folder, or None."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return error.strerror or type(error).__name__


@doctor_check
def name_clash() -> Iterator[CheckResult]:
    """Check whether another installed distribution also provides the command `thunder`."""
    installed = [f"{name} {version}" for name in OTHER_THUNDERS if (version := installed_version(name))]
    script = shutil.which("thunder")
    yield result_of(
        "name clash",
        not installed,
        f"installed: {', '.join(installed)}" if installed else f"none; the command is {script or 'not on PATH'}",
        f"{DISTRIBUTION} is imported as thunder_core and shares no module with these packages, but they may replace "
        "the command `thunder`; `python -m thunder_cli.main` always runs this Thunder",
        "optional",
    )
