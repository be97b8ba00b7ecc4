"""Keys and signed artifacts for the tests of signatures."""

from __future__ import annotations

import warnings
from pathlib import Path

import thunder_core as thunder
from thunder_core.workflow.artifact import open_artifact
from thunder_core.workflow.artifact.format.signature import (
    sign_folder,
)
from thunder_core.workflow.artifact.trust.keys import read_private_key


def sign(folder: Path, key: Path):
    return sign_folder(folder, open_artifact(folder).manifest, read_private_key(key))


def silent(folder, model, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return thunder.load(folder, model, **options)
