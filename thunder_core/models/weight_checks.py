"""Whether a checkpoint's weights fit the model that they were read into."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModel, PreTrainedModel

from thunder_core.errors import BadModelFolder

# Base models carry this head: checkpoints of another task lack it, and transformers then starts it afresh.
OPTIONAL_PART = "pooler"

Mismatch = tuple[str, Iterable[int], Iterable[int]]  # a weight, its shape in the checkpoint and in the model


def check_weights(folder: Path, model: PreTrainedModel, report: Mapping[str, Any]) -> tuple[str, ...]:
    """Notes about weights that are new or unused; raises `BadModelFolder` where the model is not the checkpoint's."""
    refuse_other_shapes(folder, model, report["mismatched_keys"])
    missing, unused = sorted(report["missing_keys"]), sorted(report["unexpected_keys"])
    refuse_missing(folder, model, missing)
    kind = type(model).__name__
    notes = []
    if missing:
        notes.append(f"{_count(missing)} of {kind} not in the checkpoint, so initialized at random: {_few(missing)}")
    if unused:
        notes.append(f"{_count(unused)} of the checkpoint not used by {kind}: {_few(unused)}")
    return tuple(notes)


def refuse_other_shapes(folder: Path, model: PreTrainedModel, mismatched: Collection[Mismatch]) -> None:
    """Raise `BadModelFolder` where a weight has another shape in the checkpoint than the config says."""
    if not mismatched:
        return
    name, found, expected = sorted(mismatched, key=lambda entry: entry[0])[0]
    raise BadModelFolder(
        f"{folder} has {_count(mismatched)} whose shape does not fit the config: "
        f"{name} is {_shape(found)}, but {type(model).__name__} takes {_shape(expected)}",
        fix="use the config.json that was saved with these weights",
    )


def refuse_missing(folder: Path, model: PreTrainedModel, missing: list[str]) -> None:
    """Raise `BadModelFolder` where more is missing than a head that the checkpoint's own task does not have."""
    needed = [name for name in missing if OPTIONAL_PART not in name.split(".")]
    if needed and type(model).__name__ not in (model.config.architectures or []):
        backbone = backbone_names(model)
        needed = [name for name in needed if _inside(name, model.base_model_prefix) in backbone]
    if needed:
        raise BadModelFolder(
            f"{folder} lacks {_count(needed)} of {type(model).__name__}: {_few(needed)}",
            fix="download the weights again, and check that config.json belongs to them",
        )


def backbone_names(model: PreTrainedModel) -> set[str]:
    """The names of the weights that the family's base model has, without the base model's prefix."""
    auto: Any = AutoModel
    with torch.device("meta"):
        return set(auto.from_config(model.config).state_dict())


def _inside(name: str, prefix: str) -> str:
    return name.removeprefix(f"{prefix}.") if prefix else name


def _count(names: Collection[object]) -> str:
    return f"{len(names)} weight{'s' if len(names) > 1 else ''}"


def _few(names: list[str]) -> str:
    modules = list(dict.fromkeys(name.rpartition(".")[0] or name for name in names))
    return ", ".join(modules[:3]) + (", ..." if len(modules) > 3 else "")


def _shape(shape: Iterable[int]) -> str:
    return "x".join(str(size) for size in shape) or "a scalar"
