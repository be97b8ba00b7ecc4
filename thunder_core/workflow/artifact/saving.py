"""`thunder_core.save`: write the programs of a compiled function or module as an artifact."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from thunder_core.compilation.compiler import specializations_of
from thunder_core.workflow.artifact.format.code import fingerprint_of
from thunder_core.workflow.artifact.origin import Origin, TracedCalls
from thunder_core.workflow.artifact.write import write_artifact


def save(
    compiled: object,
    folder: str | Path,
    *,
    example: Mapping[str, torch.Tensor] | None = None,
    source: Mapping[str, object] | None = None,
    include_weights: bool = False,
    force: bool = False,
    sign_key: str | Path | None = None,
) -> Path:
    """Write a compiled function or module, with all its traced programs, as an artifact; return the artifact's folder.

    `load(folder, model)` loads the artifact in another process without tracing. `include_weights` also writes the
    model's parameters and buffers, with tied and shared weights preserved; if the model's class is from the
    transformers library, `load(folder)` then needs nothing else. `example` has the keyword arguments of one call, which
    `thunder inspect-trace --plain` runs on. `source` is a `LoadedModel.source`, from which `load` can rebuild the
    model. `sign_key` is the file of a private key to sign the artifact with.

    Raises `WrongInputs` before the first call, `CannotReplay` if a program refers to an object that cannot be saved,
    `OutputExists` unless `force` is set, `OutputNotWritable`, `OutOfDisk`, and `BadKey` if the key cannot sign.
    """
    subject = specializations_of(compiled).subject
    return write_artifact(
        Path(folder),
        compiled,
        Origin(source=source or {}, fingerprint=fingerprint_of(subject)),
        TracedCalls(example=example or {}),
        include_weights=include_weights,
        force=force,
        sign_key=None if sign_key is None else Path(sign_key).expanduser(),
    )
