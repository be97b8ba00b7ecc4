"""Artifacts that run before their model is built, if this process has the same libraries as when they were written.

If the class of a model comes from a library and its weights are in the artifact, the library always builds the same
model from the same config. The programs' guards on the model are therefore checked once, in a new process, and need no
check until the library is imported. `standalone.json` in the artifact records the versions and environment variables
of that process, which are compared with the loading process.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Self

from pydantic import ValidationError

from thunder_core.foundation import plugins
from thunder_core.foundation.storage.digest import digest_of
from thunder_core.foundation.storage.manifest import StoredFacts
from thunder_core.foundation.tested_versions import installed_version
from thunder_core.workflow.artifact.format.code import VERSIONED_PACKAGES
from thunder_core.workflow.artifact.format.manifest import CONFIG, CONSTANTS
from thunder_core.workflow.artifact.format.packages import PRESENT_PACKAGES, imported_packages, package_of
from thunder_core.workflow.artifact.format.program_facts import (
    ProgramFacts,
    StageFacts,
    executed_stages,
    running_stages,
)
from thunder_core.workflow.artifact.format.read import Artifact
from thunder_core.workflow.artifact.standalone.replaced_outputs import replace_outputs
from thunder_core.workflow.artifact.standalone.separation import NotSeparable, SeparatedPrologue, separate_prologue
from thunder_core.workflow.artifact.trust.trust import Trust
from thunder_core.workflow.models.folder.folder import code_of_the_hub

STANDALONE = "standalone.json"
CHECK_PROGRAM = "from thunder_core.workflow.artifact.standalone_check import main; main()"
CHECK_TIMEOUT = 300  # seconds; after a timeout, no programs run without the model
ENVIRONMENT_PREFIXES = ("TRANSFORMERS_", "USE_")  # prefixes of the environment variables that transformers reads
# Variables that name folders or control messages and tests; they do not change a model.
IGNORED_VARIABLES = frozenset(
    {
        "TRANSFORMERS_CACHE",
        "TRANSFORMERS_IS_CI",
        "TRANSFORMERS_NO_ADVISORY_WARNINGS",
        "TRANSFORMERS_OFFLINE",
        "TRANSFORMERS_VERBOSITY",
    }
)
# A development extra has one of these words in its name.
DEVELOPMENT_EXTRAS = frozenset({"all", "benchmark", "dev", "docs", "quality", "test", "testing"})
EXTRA = re.compile(r"""extra *== *["']([^"']*)""")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class StandaloneFacts(StoredFacts):
    """The versions and environment variables with which the guards on a model held, and the programs whose guards held.

    `versions` are the versions of the library's distribution and of its required and optional dependencies; a version
    is empty if the distribution is not installed. `variables` has a digest of each environment variable that the
    library reads.
    """

    python: str
    packages: tuple[str, ...]
    versions: dict[str, str]
    variables: dict[str, str]
    programs: tuple[int, ...]

    @classmethod
    def here(cls, packages: Iterable[str], programs: Iterable[int]) -> Self:
        """Return the facts for this process."""
        packages = tuple(sorted(packages))
        return cls(
            python=python_version(),
            packages=packages,
            versions={name: installed_version(name) or "" for name in sorted(related_distributions(packages))},
            variables=variables_here(),
            programs=tuple(programs),
        )


def variables_here() -> dict[str, str]:
    """Return digests of the environment variables that may affect a model; digests keep the values private."""
    names = [
        name for name in sorted(os.environ) if name.startswith(ENVIRONMENT_PREFIXES) and name not in IGNORED_VARIABLES
    ]
    return {name: digest_of(f"{name}={os.environ[name]}".encode()) for name in names}


def related_distributions(packages: Iterable[str]) -> set[str]:
    """Return the distributions of packages with their required and optional dependencies, except development extras."""
    requirements = [requirement for package in packages for requirement in requirements_of(package)]
    used = [
        requirement
        for requirement in requirements
        if (extra := EXTRA.search(requirement)) is None or DEVELOPMENT_EXTRAS.isdisjoint(re.split(r"[-_.]", extra[1]))
    ]
    return {*packages, *(name[0] for requirement in used if (name := NAME.match(requirement)) is not None)}


def requirements_of(distribution: str) -> Sequence[str]:
    """Return the requirements in a distribution's metadata; empty if the distribution is not installed."""
    try:
        return importlib.metadata.requires(distribution) or ()
    except importlib.metadata.PackageNotFoundError:
        return ()


def separated_program(artifact: Artifact, facts: ProgramFacts) -> SeparatedPrologue | None:
    """Return the two parts of a program's prologue; None if another part needs the model or its library."""
    if facts.derivative is not None and facts.derivative.readers:
        return None
    stages = running_stages(facts.stages)
    try:
        prologue, epilogue = stages["prologue"], stages["epilogue"]
        text, outputs = replace_outputs(artifact.source(epilogue))
        for stage in executed_stages(facts):
            if stage is not prologue and needs_model(stage, text if stage is epilogue else artifact.source(stage)):
                return None
        parts = separate_prologue(artifact.source(prologue), prologue.constants, artifact.manifest.weights)
    except (NotSeparable, KeyError):
        return None
    return dataclasses.replace(parts, epilogue=text, outputs=outputs) if outputs else parts


def needs_model(stage: StageFacts, text: str) -> bool:
    """Whether a stage with this text needs the model, or a package that may be missing."""
    constants = stage.constants.values()
    packages = {package_of(facts.text) for facts in constants if facts.kind == "import"} | imported_packages(text)
    return not packages <= PRESENT_PACKAGES or any(facts.kind == "path" for facts in constants)


def candidates(artifact: Artifact) -> dict[int, SeparatedPrologue]:
    """Return the programs that may run without the model, by their numbers."""
    manifest = artifact.manifest
    if manifest.empty_model is None or not manifest.weights or CONSTANTS in manifest.files:
        return {}
    parts = {number: separated_program(artifact, facts) for number, facts in enumerate(manifest.programs)}
    return {number: part for number, part in parts.items() if part is not None and part.packages}


def is_worth_a_check(artifact: Artifact) -> bool:
    """Whether it is worth checking, in a new process, that the programs run without the model; this takes seconds.

    Programs that only run if the library is not installed are checked for `thunder optimize`, which takes longer
    anyway, but not for `save`.
    """
    by_recipe = bool(artifact.manifest.recipe)
    return any(by_recipe or not prologue.outputs for prologue in candidates(artifact).values())


def check_standalone(artifact: Artifact) -> StandaloneFacts | None:
    """Build the model in a new process and check the guards on it; return the facts of the programs that passed.

    Return None if no program is a candidate, if no program passes, or if the process fails or takes too long.
    """
    if not is_worth_a_check(artifact):
        return None
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / STANDALONE
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, map(os.path.abspath, sys.path)))}
        # -P: do not import from the current folder, which may not be on the path of this process
        command = [sys.executable, "-P", "-c", CHECK_PROGRAM, str(artifact.folder), str(out)]
        try:
            subprocess.run(command, env=environment, capture_output=True, timeout=CHECK_TIMEOUT, check=True)  # noqa: S603
            return StandaloneFacts.model_validate_json(out.read_bytes())
        except (OSError, subprocess.SubprocessError, ValidationError):
            return None


def standalone_here(artifact: Artifact, trust: Trust) -> dict[int, SeparatedPrologue]:
    """Return the programs of an artifact that run here before the model is built; empty if a recorded fact differs."""
    facts = standalone_facts(artifact)
    if facts is None or is_imported(facts.packages) or not needs_no_consent(artifact, trust):
        return {}
    without_library = holds_without_library(facts)
    if not without_library and facts != facts.here(facts.packages, facts.programs):
        return {}
    if not has_same_code(artifact):
        return {}
    programs = {
        number: prologue
        for number, prologue in candidates(artifact).items()
        if number in facts.programs and (without_library or not prologue.outputs)
    }
    return programs if all(set(part.packages) <= set(facts.packages) for part in programs.values()) else {}


def standalone_facts(artifact: Artifact) -> StandaloneFacts | None:
    """Return the facts in the artifact; None if there are none."""
    if STANDALONE not in artifact.manifest.files or artifact.manifest.empty_model is None:
        return None
    try:
        return StandaloneFacts.model_validate_json(artifact.text(STANDALONE))
    except ValidationError:
        return None


def is_imported(packages: Iterable[str]) -> bool:
    """Whether this process has imported one of the packages, so that its objects may have been changed."""
    return any(sys.modules.get(package) is not None for package in packages)


def holds_without_library(facts: StandaloneFacts) -> bool:
    """Whether no library of the model is installed, so that no version can differ from the recorded version."""
    return facts.python == python_version() and not any(map(plugins.is_installed, facts.packages))


def python_version() -> str:
    """Return the major and minor version of Python, which programs depend on."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def needs_no_consent(artifact: Artifact, trust: Trust) -> bool:
    """Whether the model can be built without the user's consent: it needs neither untrusted modules nor Hub code."""
    running_constants = (
        facts.text
        for program in artifact.manifest.programs
        for stage in executed_stages(program)
        for facts in stage.constants.values()
        if facts.kind == "import"
    )
    modules = {path.partition(":")[0] for path in (*running_constants, *artifact.manifest.code)}
    if not all(trust.covers(module) or package_of(module) in PRESENT_PACKAGES for module in modules):
        return False
    try:
        config = json.loads(artifact.text(CONFIG))
    except (ValueError, RecursionError):
        return False
    model = artifact.manifest.empty_model
    attention = model.attention if model is not None else ""
    return isinstance(config, dict) and code_of_the_hub({**config, "attn_implementation": attention}) is None


def has_same_code(artifact: Artifact) -> bool:
    """Whether every source file is unchanged since it was traced. The check imports no module."""
    return all(
        (path := plugins.file_of(module)) is not None and digest_of(path.read_bytes()) == digest
        for module, digest in artifact.manifest.code.items()
        if package_of(module) not in VERSIONED_PACKAGES and plugins.is_installed(module)
    )
