"""`thunder_core.save`: what was compiled in this process, kept for another."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from thunder_core.compilation.compiler import specializations_of
from thunder_core.workflow.artifact.format.code import fingerprint_of
from thunder_core.workflow.artifact.write import write_artifact


def save(
    compiled: Any,
    folder: str | Path,
    *,
    example: Mapping[str, torch.Tensor] | None = None,
    source: Mapping[str, object] | None = None,
    include_weights: bool = False,
    force: bool = False,
    sign_key: str | Path | None = None,
) -> Path:
    """Write a compiled function or module, with every program that it has traced, as an artifact; returns its folder.

    `load(folder, model)` gives it back in another process without tracing. The model's own weights are kept only with
    `include_weights`: its parameters and buffers, tied and shared as they are. For a model whose class is of the
    transformers library `load(folder)` then needs nothing else. `example` are the keyword arguments of one call, so
    that `thunder inspect-trace --plain` has something to run on; `source` is a `LoadedModel.source`, so that `load`
    can rebuild the model from where it came from. It is signed with the private key in the file `sign_key`.

    Raises `WrongInputs` before the first call, `CannotReplay` for a program that refers to an object which cannot be
    kept, `OutputExists` unless `force`, `OutputNotWritable`, `OutOfDisk`, and `BadKey` for a key that cannot sign.
    """
    subject = specializations_of(compiled).subject
    return write_artifact(
        Path(folder),
        compiled=compiled,
        source=source or {},
        fingerprint=fingerprint_of(subject),
        recipe="",
        options={},
        example=example,
        include_weights=include_weights,
        force=force,
        sign_key=None if sign_key is None else Path(sign_key).expanduser(),
    )
