"""The source files that a program was traced from; if one of them changes, the program may differ."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import torch

from thunder_core.backend.runtime.program import Program
from thunder_core.foundation.errors import ArtifactForeign
from thunder_core.foundation.storage.digest import digest_of
from thunder_core.workflow.artifact.format.program_facts import StageFacts
from thunder_core.workflow.artifact.trust.trust import Trust
from thunder_core.workflow.models.loading.fingerprint import structure_fingerprint

# These packages are identified by their versions, or by the artifact's schema.
VERSIONED_PACKAGES = frozenset({"torch", "thunder_core", "builtins", *sys.stdlib_module_names})
# Another process cannot import a script by name, whether it was started or imported by `multiprocessing`.
SCRIPTS = frozenset({"__main__", "__mp_main__"})


def code_of(subject: object, programs: Iterable[Program], stages: Iterable[StageFacts]) -> dict[str, str]:
    """Return the digests of the module files of the subject's classes, guarded functions and bound symbols."""
    guarded = {
        facts.text.partition(":")[0]
        for stage in stages
        for facts in stage.constants.values()
        if facts.kind == "import" and stage.runs
    }
    names = {type(module).__module__ for module in submodules(subject)} | guarded | _modules_of_files(programs)
    digests = {
        name: file_digest(name) for name in sorted(names) if name.partition(".")[0] not in VERSIONED_PACKAGES | SCRIPTS
    }
    return {name: digest for name, digest in digests.items() if digest}


def verify_code(code: dict[str, str], *, subject: str, trust: Trust) -> None:
    """Raise `ArtifactForeign` if a module was changed or is missing, and `ImportRefused` for an untrusted module."""
    for name, digest in code.items():
        try:
            trust.import_object(name)
        except ImportError as error:
            raise ArtifactForeign(
                f"{subject} was traced from the module {name}, which cannot be found: {error}",
                fix=f"install the module {name}, or add it to PYTHONPATH",
            ) from error
        if file_digest(name) != digest:
            raise ArtifactForeign(
                f"the code of {name} has changed since {subject} was traced from it",
                fix="install the version that the artifact was made with, or make the artifact again",
            )


def fingerprint_of(subject: object) -> str:
    """Return the fingerprint of a module's structure; empty for a function, whose code is compared instead."""
    return structure_fingerprint(subject) if isinstance(subject, torch.nn.Module) else ""


def submodules(subject: object) -> list[torch.nn.Module]:
    """Return every submodule of a module; empty for a function."""
    return list(subject.modules()) if isinstance(subject, torch.nn.Module) else []


def file_digest(module: str) -> str:
    """Return the digest of the file of an imported module; empty if the module has no file."""
    path = file_of(sys.modules.get(module))
    return digest_of(Path(path).read_bytes()) if path else ""


def file_of(module: object) -> str | None:
    """Return the source file of a module; None if it has none."""
    path = getattr(module, "__file__", None)
    return path if isinstance(path, str) and path.endswith(".py") and Path(path).is_file() else None


def _modules_of_files(programs: Iterable[Program]) -> set[str]:
    source_files = {
        bsym.source.filename
        for program in programs
        for stage in program.stages
        for bsym in stage.trace.bound_symbols
        if bsym.source is not None
    }
    return {
        name
        for name, module in list(sys.modules.items())
        if source_files and getattr(module, "__file__", None) in source_files
    }
