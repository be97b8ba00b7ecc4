"""Check whether the weights of a checkpoint fit the model."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from transformers import AutoModel

from thunder_core.foundation.errors import BadModelFolder
from thunder_core.workflow.models.request.request import ModelRequest

if TYPE_CHECKING:
    from transformers import PreTrainedModel  # its module takes seconds to import

Mismatch = tuple[str, Iterable[int], Iterable[int]]  # a weight, its shape in the checkpoint and in the model


@dataclass(frozen=True)
class AllowedWeights:
    """Patterns for the names of weights or modules that may be random or unused.

    `other_head` is True if the user named the task, so that the head may differ from the checkpoint's head.
    `not_needed` are patterns for weights that the model does not use, or that another file has.
    """

    random: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    other_head: bool = False
    not_needed: tuple[str, ...] = ()

    @classmethod
    def of(cls, request: ModelRequest, *, other_head: bool = False, not_needed: tuple[str, ...] = ()) -> AllowedWeights:
        """Return the patterns of a request."""
        return cls(request.allow_random_weights, request.allow_unused_weights, other_head, not_needed)


def check_weights(
    folder: Path, model: torch.nn.Module, report: Mapping[str, Any], allowed: AllowedWeights
) -> tuple[str, ...]:
    """Return caveats about random or unused weights; raise `BadModelFolder` for weights that are not allowed."""
    refuse_other_shapes(folder, model, report["mismatched_keys"])
    missing = sorted(name for name in report["missing_keys"] if not matches(name, allowed.not_needed))
    unused = sorted(report["unexpected_keys"])
    refuse_missing(folder, model, missing, allowed)
    refuse_unused(folder, model, unused, allowed)
    kind = type(model).__name__
    caveats = []
    if missing:
        caveats.append(
            f"{_count(missing)} of {kind} not in the checkpoint, so initialized at random: {_few_modules(missing)}"
        )
    if unused:
        caveats.append(f"{_count(unused)} of the checkpoint not used by {kind}: {_few_modules(unused)}")
    return tuple(caveats)


def refuse_other_shapes(folder: Path, model: torch.nn.Module, mismatched: Collection[Mismatch]) -> None:
    """Raise `BadModelFolder` if a weight in the checkpoint has another shape than the config requires."""
    if not mismatched:
        return
    name, actual, expected = sorted(mismatched, key=lambda entry: entry[0])[0]
    raise BadModelFolder(
        f"{folder} has {_count(mismatched)} whose shape does not fit the config: "
        f"{name} is {_shape(actual)}, but {type(model).__name__} takes {_shape(expected)}",
        fix="use the config.json that was saved with these weights",
    )


def refuse_missing(folder: Path, model: torch.nn.Module, missing: list[str], allowed: AllowedWeights) -> None:
    """Raise `BadModelFolder` for weights that the checkpoint lacks, unless they are allowed to be random."""
    needed = [name for name in missing if not matches(name, allowed.random)]
    if not needed:
        return
    shared = [name for name in needed if not is_head(name, model)]
    needed = shared or needed
    if not shared:
        fix = (
            "use a checkpoint with that head, or --task for the head of this checkpoint; if random weights are "
            f"intended, name them: {_options('--allow-random-weights', needed)}"
        )
    else:
        fix = "fetch the weights again, and check that config.json belongs to them"
    raise BadModelFolder(f"{folder} lacks {_count(needed)} of {type(model).__name__}: {_few_modules(needed)}", fix=fix)


def refuse_unused(folder: Path, model: torch.nn.Module, unused: list[str], allowed: AllowedWeights) -> None:
    """Raise `BadModelFolder` for unused weights, unless they are allowed or belong to a different head."""
    unexplained = [name for name in unused if not matches(name, allowed.unused)]
    unexplained = [name for name in unexplained if not (allowed.other_head and is_head(name, model))]
    if unexplained:
        heads = all(is_head(name, model) for name in unexplained)
        advice = "name the intended task with --task" if heads else "use the config of these weights"
        raise BadModelFolder(
            f"{folder} holds {_count(unexplained)} that {type(model).__name__} does not use: "
            f"{_few_modules(unexplained)}",
            fix=f"{advice}; to leave out these weights, name them: {_options('--allow-unused-weights', unexplained)}",
        )


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a pattern matches the name of a weight, or of a module that contains the weight."""
    parts = name.split(".")
    names = [".".join(parts[:length]) for length in range(1, len(parts) + 1)]
    return any(fnmatchcase(name, pattern) for pattern in patterns for name in names)


def is_head(name: str, model: torch.nn.Module) -> bool:
    """Whether a weight belongs to a head or a pooler, and not to the layers that all models of a family share.

    Only models of transformers have families with shared layers.
    """
    prefix: str | None = getattr(model, "base_model_prefix", None)
    if prefix is None:
        return False
    top = _without_prefix(name, prefix).partition(".")[0]
    backbone = {weight.partition(".")[0] for weight in backbone_names(cast("PreTrainedModel", model))}
    return "pooler" in name.split(".") or top not in backbone


def backbone_names(model: PreTrainedModel) -> set[str]:
    """Return the names of the weights of the family's base model, without the prefix of the base model."""
    auto: Any = AutoModel
    with torch.device("meta"):
        return set(auto.from_config(model.config).state_dict())


def _without_prefix(name: str, prefix: str) -> str:
    return name.removeprefix(f"{prefix}.") if prefix else name


def _options(option: str, names: list[str]) -> str:
    return " ".join(f"{option} {module}" for module in _modules(names)[:3])


def _modules(names: list[str]) -> list[str]:
    return list(dict.fromkeys(name.rpartition(".")[0] or name for name in names))


def _count(names: Collection[object]) -> str:
    return f"{len(names)} weight{'s' if len(names) > 1 else ''}"


def _few_modules(names: list[str]) -> str:
    modules = _modules(names)
    return ", ".join(modules[:3]) + (", ..." if len(modules) > 3 else "")


def _shape(shape: Iterable[int]) -> str:
    return "x".join(str(size) for size in shape) or "a scalar"
