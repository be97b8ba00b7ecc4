"""A tiny compiled model and its artifact."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import thunder_core as thunder
from tests.artifact.marked import artifact_of, library
from tests.artifact.signing import sign
from tests.artifact.tiny import build
from thunder_core.workflow.artifact.trust.keys import new_key_pair

torch.set_num_threads(1)


@pytest.fixture
def model() -> torch.nn.Module:
    return build()


@pytest.fixture
def x() -> torch.Tensor:
    return torch.linspace(-1, 1, 12).reshape(3, 4)


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An artifact of the model. Tests must not change it."""
    compiled = thunder.jit(build())
    given = torch.linspace(-1, 1, 12).reshape(3, 4)
    compiled(given)
    folder = tmp_path_factory.mktemp("artifacts") / "tiny.thunder"
    yield thunder.save(compiled, folder, example={"input": given})


@pytest.fixture
def artifact(written: Path, tmp_path: Path) -> Path:
    """A copy of the artifact that a test may damage."""
    return Path(shutil.copytree(written, tmp_path / "tiny.thunder"))


@pytest.fixture(scope="session")
def kernels(tmp_path_factory) -> bytes:
    """The bytes of an extension module, like those of a region that the tests compile."""
    return library(tmp_path_factory.mktemp("library"))


@pytest.fixture(scope="session")
def sound(kernels, tmp_path_factory) -> Path:
    """An undamaged artifact. Tests must not change it."""
    return artifact_of(2.0, kernels, tmp_path_factory.mktemp("sound") / "sound.thunder")


@pytest.fixture
def config(tmp_path, monkeypatch) -> Path:
    """The folder for the user's list of trusted keys, which does not exist yet."""
    monkeypatch.setenv("THUNDER_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.delenv("THUNDER_KEY_PASSPHRASE", raising=False)
    return tmp_path / "config"


@pytest.fixture
def key(tmp_path) -> Path:
    """A private key with its public key."""
    new_key_pair(tmp_path / "mine", "me")
    return tmp_path / "mine"


@pytest.fixture
def signed(artifact, key) -> Path:
    sign(artifact, key)
    return artifact


@pytest.fixture
def mark(tmp_path, monkeypatch) -> Path:
    """The file that exists as soon as untrusted code has run."""
    monkeypatch.setenv("THUNDER_TEST_MARK", str(tmp_path / "mark"))
    return tmp_path / "mark"
