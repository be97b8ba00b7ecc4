"""Attacks on commands that inspect or load an artifact: no code runs, no command hangs, and each attack is refused."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import thunder_core as thunder
from tests.artifact.attacks import EMPTY_MODELS, MODELS, STRANGER, attacks
from tests.artifact.damages import groups, restore
from tests.artifact.marked import VARIABLE, Scaled, X, artifact_of
from thunder_core.foundation.errors import ArtifactError, ThunderError
from thunder_core.workflow.artifact import open_artifact
from thunder_core.workflow.artifact.format.report import read_report
from thunder_core.workflow.artifact.format.signature import signers_of
from thunder_core.workflow.inspect.subject import subject_of

ALL = dict(attacks())
DAMAGED = 300
MOST_SECONDS = 2.0  # CPU seconds; a manifest of 64 MB takes one of them
FOREIGN = {*MODELS, *EMPTY_MODELS}  # attacks on parts that are not read if a model is passed in


@pytest.fixture(scope="module")
def neighbour(kernels, tmp_path_factory) -> Path:
    """Another artifact."""
    return artifact_of(3.0, kernels, tmp_path_factory.mktemp("sound") / "neighbour.thunder")


@pytest.fixture
def folder(sound, neighbour, tmp_path) -> Path:
    """A copy that a test may change, next to another artifact."""
    shutil.copytree(neighbour, tmp_path / "neighbour.thunder")
    return Path(shutil.copytree(sound, tmp_path / "copy.thunder"))


@pytest.fixture
def mark(folder, tmp_path, monkeypatch) -> Path:
    """The file that exists as soon as code of an artifact or of an untrusted module has run."""
    (tmp_path / "path").mkdir()
    text = f"import os\nos.close(os.open(os.environ[{VARIABLE!r}], os.O_CREAT))\n"
    (tmp_path / "path" / f"{STRANGER}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path / "path")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "mark"))
    return tmp_path / "mark"


def inspected(folder: Path) -> None:
    """Read an artifact like `thunder inspect-trace` and `thunder executors --of`."""
    artifact = open_artifact(folder)
    for number in range(len(artifact.manifest.programs)):
        for stage in subject_of(artifact, number).stages:
            stage.read()
    read_report(artifact)


def verified(folder: Path) -> None:
    """Read an artifact like `thunder verify`."""
    signers_of(open_artifact(folder))


LOOKS: dict[str, Callable[[Path], object]] = {
    "loaded": lambda folder: thunder.load(folder, Scaled(2.0), weights=True),
    "loaded with weights of its own": lambda folder: thunder.load(folder, Scaled(2.0), strict=True),
    "loaded without a model": thunder.load,
    "inspected": inspected,
    "verified": verified,
}


def test_attacks_are_numerous():
    assert len(ALL) >= 60
    assert sum(len(group) for _, group in groups()) >= DAMAGED


def test_damaged_artifacts_are_refused_and_run_no_code(sound, folder, mark):
    """Each damaged artifact is read by one of the commands."""
    kinds = {kind: group for kind, group in groups() if kind != "resealed"}
    flat = [(f"{kind}: {name}", damage) for kind, group in kinds.items() for name, damage in group.items()]
    looks = [look for look in LOOKS if look != "loaded without a model"]
    for number in range(DAMAGED):
        name, damage = flat[number * len(flat) // DAMAGED]
        damage(folder)
        with pytest.raises(ArtifactError):
            LOOKS["loaded" if "crafted" in name else looks[number % len(looks)]](folder)
        assert not mark.exists(), name
        restore(sound, folder)


def test_resealed_artifacts_are_refused_and_run_no_code(sound, folder, mark):
    """Each resealed artifact is loaded, which is refused, and is read by one other command."""
    others = [look for look in LOOKS if look != "loaded"]
    for number, (name, attack) in enumerate(ALL.items()):
        attack(folder)
        first = "loaded without a model" if name in FOREIGN else "loaded"
        assert is_refused(folder, first, name), name
        is_refused(folder, others[number % len(others)], name)
        assert not mark.exists(), name
        restore(sound, folder)


def is_refused(folder: Path, look: str, name: str) -> bool:
    """Whether an artifact is refused at once, with a printable message."""
    start = time.thread_time()
    try:
        LOOKS[look](folder)
    except ThunderError as error:
        assert error.fix, name
        assert str(error).replace("\n", "").isprintable(), name
        return True
    finally:
        assert time.thread_time() - start < MOST_SECONDS, (name, look)
    return False


def test_the_mark_is_written_if_code_runs(folder, mark):
    """Without this check the other tests would prove nothing."""
    with torch.no_grad():
        thunder.load(folder, Scaled(2.0), strict=True)(X)
    assert mark.exists()
    mark.unlink()
    __import__(STRANGER)
    assert mark.exists()
