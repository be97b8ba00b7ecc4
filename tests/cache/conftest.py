"""A store in a temporary folder, a key, and a builder that counts its runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cache.samples import Builder, key_of
from thunder_core.backend.cache import Key, Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "kernels")


@pytest.fixture
def key() -> Key:
    return key_of("a region")


@pytest.fixture
def build() -> Builder:
    return Builder()
