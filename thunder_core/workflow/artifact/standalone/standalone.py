"""Artifacts that run before their model is built: what was found of one when it was written, and whether it is so here.

A model whose class is of a library, and whose weights an artifact includes, is the same wherever it is built from the
same config by the same library; so what its programs guard of it was checked once, in a fresh process, and need not be
checked again as long as nobody has imported the library. `standalone.json` in the artifact says by what that goes.
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
from thunder_core.workflow.artifact.format.code import BY_VERSION
from thunder_core.workflow.artifact.format.manifest import (
    CONFIG,
    CONSTANTS,
    ProgramFacts,
    StageFacts,
    executed,
    running,
)
from thunder_core.workflow.artifact.format.packages import PRESENT, imported_packages, package_of
from thunder_core.workflow.artifact.format.read import Artifact
from thunder_core.workflow.artifact.standalone.replaced_outputs import replace_outputs
from thunder_core.workflow.artifact.standalone.separation import NotSeparable, SeparatedPrologue, separate_prologue
from thunder_core.workflow.artifact.trust.trust import Trust
from thunder_core.workflow.models.folder.folder import code_of_the_hub

STANDALONE = "standalone.json"
CHECK = "from thunder_core.workflow.artifact.standalone_check import main; main()"
CHECK_TIMEOUT = 300  # seconds, after which an artifact has no programs that run without its model
ENVIRONMENT_PREFIXES = ("TRANSFORMERS_", "USE_")  # of the variables that transformers and its kernels read
# Of those, where files lie, what is printed and what tests are told; none of it says what a model is.
IMMATERIAL = frozenset(
    {
        "TRANSFORMERS_CACHE",
        "TRANSFORMERS_IS_CI",
        "TRANSFORMERS_NO_ADVISORY_WARNINGS",
        "TRANSFORMERS_OFFLINE",
        "TRANSFORMERS_VERBOSITY",
    }
)
DEVELOPMENT_EXTRAS = frozenset({"all", "benchmark", "dev", "docs", "quality", "test", "testing"})  # by a word
EXTRA = re.compile(r"""extra *== *["']([^"']*)""")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class StandaloneFacts(StoredFacts):
    """The circumstances under which guards on a model were found to hold, and for which programs they were.

    `versions` are those of the library's distribution and of all that it can work with, empty for one that is not
    there; `variables` has a digest of what each variable of the environment tells the library.
    """

    python: str
    packages: tuple[str, ...]
    versions: dict[str, str]
    variables: dict[str, str]
    programs: tuple[int, ...]

    @classmethod
    def here(cls, packages: Iterable[str], programs: Iterable[int]) -> Self:
        """The circumstances of this process."""
        packages = tuple(sorted(packages))
        return cls(
            python=python_version(),
            packages=packages,
            versions={name: installed_version(name) or "" for name in sorted(related(packages))},
            variables=variables_here(),
            programs=tuple(programs),
        )


def variables_here() -> dict[str, str]:
    """The variables by which a library may decide what a model is, each as a digest: an artifact is for others, too."""
    names = [name for name in sorted(os.environ) if name.startswith(ENVIRONMENT_PREFIXES) and name not in IMMATERIAL]
    return {name: digest_of(f"{name}={os.environ[name]}".encode()) for name in names}


def related(packages: Iterable[str]) -> set[str]:
    """The distributions of packages, and their required and optional ones, but for those of development extras."""
    requirements = [one for package in packages for one in requirements_of(package)]
    used = [
        one
        for one in requirements
        if (extra := EXTRA.search(one)) is None or DEVELOPMENT_EXTRAS.isdisjoint(re.split(r"[-_.]", extra[1]))
    ]
    return {*packages, *(found[0] for one in used if (found := NAME.match(one)) is not None)}


def requirements_of(distribution: str) -> Sequence[str]:
    """The requirements of a distribution as its metadata has them; none where it is not installed."""
    try:
        return importlib.metadata.requires(distribution) or ()
    except importlib.metadata.PackageNotFoundError:
        return ()


def separated_program(artifact: Artifact, facts: ProgramFacts) -> SeparatedPrologue | None:
    """The two parts of a program's prologue, if nothing else of the program needs the model or its library."""
    stages = running(facts.stages)
    try:
        prologue, epilogue = stages["prologue"], stages["epilogue"]
        text, outputs = replace_outputs(artifact.source(epilogue))
        for stage in executed(facts):
            if stage is not prologue and needs_model(stage, text if stage is epilogue else artifact.source(stage)):
                return None
        parts = separate_prologue(artifact.source(prologue), prologue.constants, artifact.manifest.weights)
    except (NotSeparable, KeyError):
        return None
    return dataclasses.replace(parts, epilogue=text, outputs=outputs) if outputs else parts


def needs_model(stage: StageFacts, text: str) -> bool:
    """Whether a stage with this text needs the model, or a package that may not be there."""
    kept = stage.constants.values()
    packages = {package_of(one.text) for one in kept if one.kind == "import"} | imported_packages(text)
    return not packages <= PRESENT or any(one.kind == "way" for one in kept)


def candidates(artifact: Artifact) -> dict[int, SeparatedPrologue]:
    """The programs that might run without the model, by their numbers."""
    manifest = artifact.manifest
    if manifest.shell is None or not manifest.weights or CONSTANTS in manifest.files:
        return {}
    parts = {number: separated_program(artifact, facts) for number, facts in enumerate(manifest.programs)}
    return {number: one for number, one in parts.items() if one is not None and one.packages}


def is_worth_a_check(artifact: Artifact) -> bool:
    """Whether programs might run without the model; the check takes seconds.

    Programs that only run where the library is not installed are checked for `thunder optimize`, which takes longer
    anyway, and not for `save`.
    """
    by_recipe = bool(artifact.manifest.recipe)
    return any(by_recipe or not one.outputs for one in candidates(artifact).values())


def check_standalone(artifact: Artifact) -> StandaloneFacts | None:
    """Build the model in a fresh process and check there the guards on it; the facts of the programs that passed.

    None where no program is a candidate or none passes, and where the process fails or takes too long.
    """
    if not is_worth_a_check(artifact):
        return None
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / STANDALONE
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, map(os.path.abspath, sys.path)))}
        # -P: not from the current folder, which the program that called us need not look into either
        command = [sys.executable, "-P", "-c", CHECK, str(artifact.folder), str(out)]
        try:
            subprocess.run(command, env=environment, capture_output=True, timeout=CHECK_TIMEOUT, check=True)  # noqa: S603
            return StandaloneFacts.model_validate_json(out.read_bytes())
        except (OSError, subprocess.SubprocessError, ValidationError):
            return None


def standalone_here(artifact: Artifact, trust: Trust) -> dict[int, SeparatedPrologue]:
    """The programs of an artifact that run here before the model is built; none where anything differs."""
    facts = standalone_facts(artifact)
    if facts is None or is_imported(facts.packages) or not needs_no_consent(artifact, trust):
        return {}
    without_library = holds_without_library(facts)
    if not without_library and facts != facts.here(facts.packages, facts.programs):
        return {}
    if not has_same_code(artifact):
        return {}
    found = {
        number: one
        for number, one in candidates(artifact).items()
        if number in facts.programs and (without_library or not one.outputs)
    }
    return found if all(set(one.packages) <= set(facts.packages) for one in found.values()) else {}


def standalone_facts(artifact: Artifact) -> StandaloneFacts | None:
    """The facts that an artifact was written with, if there are any."""
    if STANDALONE not in artifact.manifest.files or artifact.manifest.shell is None:
        return None
    try:
        return StandaloneFacts.model_validate_json(artifact.text(STANDALONE))
    except ValidationError:
        return None


def is_imported(packages: Iterable[str]) -> bool:
    """Whether one of the packages was imported in this process, so that its objects may have been changed."""
    return any(sys.modules.get(package) is not None for package in packages)


def holds_without_library(facts: StandaloneFacts) -> bool:
    """Whether no library of the model is installed here, so that nothing can differ from what the programs expect."""
    return facts.python == python_version() and not any(map(plugins.installed, facts.packages))


def python_version() -> str:
    """The version of Python, as far as programs depend on it."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def needs_no_consent(artifact: Artifact, trust: Trust) -> bool:
    """Whether no module of a stranger, and no code of the hub, is asked for: loading says at once that it is."""
    running_constants = (
        one.text
        for program in artifact.manifest.programs
        for stage in executed(program)
        for one in stage.constants.values()
        if one.kind == "import"
    )
    modules = {path.partition(":")[0] for path in (*running_constants, *artifact.manifest.code)}
    if not all(trust.covers(module) or package_of(module) in PRESENT for module in modules):
        return False
    try:
        config = json.loads(artifact.text(CONFIG))
    except (ValueError, RecursionError):
        return False
    model = artifact.manifest.shell
    attention = model.attention if model is not None else ""
    return isinstance(config, dict) and code_of_the_hub({**config, "attn_implementation": attention}) is None


def has_same_code(artifact: Artifact) -> bool:
    """Whether every source file is the one that was traced; none is imported, nor are the packages that they are in."""
    return all(
        (path := plugins.file_of(module)) is not None and digest_of(path.read_bytes()) == digest
        for module, digest in artifact.manifest.code.items()
        if package_of(module) not in BY_VERSION and plugins.installed(module)
    )
