"""Models that are named by their hub name: from the local cache, or downloaded when there is a network."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import huggingface_hub
from huggingface_hub import constants
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

from thunder_core.errors import ModelNotFound, ThunderError
from thunder_core.models.checkpoint import shards_of
from thunder_core.models.folder import CONFIG_FILE
from thunder_core.models.foreign_formats import ADAPTER, INDEX, PIPELINE, SINGLE, refuse_other_kinds


@dataclass(frozen=True)
class HubModel:
    """A hub name at one commit, with the folder of the local cache that holds it."""

    name: str
    commit: str
    folder: Path


def is_hub_name(name: str) -> bool:
    """Whether a text can be a hub name: `name` or `owner/name`."""
    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True


def is_cached(name: str, revision: str | None = None) -> bool:
    """Whether the local cache has the config of the model of that name."""
    return _cached(name, CONFIG_FILE, revision or constants.DEFAULT_REVISION) is not None


def is_offline() -> bool:
    """Whether the network may not be used, so that only the local cache is asked."""
    return bool(constants.is_offline_mode())


def find_on_hub(name: str, revision: str | None) -> HubModel:
    """The model of that name, its config in the cache; raises `ModelNotFound`."""
    config = _fetch(name, CONFIG_FILE, revision or constants.DEFAULT_REVISION)
    if config is None:
        refuse_other_repositories(name, revision or constants.DEFAULT_REVISION)
        raise ModelNotFound(f"{name} on the hub holds no {CONFIG_FILE}", fix="name a model of the transformers library")
    return HubModel(name=name, commit=config.parent.name, folder=config.parent)


def refuse_other_repositories(name: str, revision: str) -> None:
    """Raise `BadModelFolder` where what the hub has under that name is an adapter or a pipeline."""
    for mark in (ADAPTER, PIPELINE):
        found = _fetch(name, mark, revision)
        if found is not None:
            refuse_other_kinds(found.parent)


def fetch_weights(model: HubModel) -> None:
    """Bring a model's safetensors into the cache; raises `ModelNotFound` where it cannot."""
    if _cached(model.name, SINGLE, model.commit) is not None:
        return
    index = _cached(model.name, INDEX, model.commit)
    if index is None:
        if _fetch(model.name, SINGLE, model.commit) is not None:
            return
        index = _fetch(model.name, INDEX, model.commit)
    for shard in sorted(shards_of(index)) if index is not None else ():
        _fetch(model.name, shard, model.commit)


def fetch_code(model: HubModel) -> None:
    """Bring the Python files of a model whose code is trusted into the cache."""
    huggingface_hub.snapshot_download(
        model.name,
        revision=model.commit,
        allow_patterns="*.py",
        cache_dir=constants.HF_HUB_CACHE,
        local_files_only=is_offline(),
    )


def _cached(name: str, filename: str, revision: str) -> Path | None:
    found = huggingface_hub.try_to_load_from_cache(name, filename, cache_dir=constants.HF_HUB_CACHE, revision=revision)
    return Path(found) if isinstance(found, str) else None


def _fetch(name: str, filename: str, revision: str) -> Path | None:
    """A file of a model, from the cache or else downloaded into it; None where the hub does not have it."""
    cached = _cached(name, filename, revision)
    if cached is not None:
        return cached
    try:
        return Path(
            huggingface_hub.hf_hub_download(name, filename, revision=revision, cache_dir=constants.HF_HUB_CACHE)
        )
    except LocalEntryNotFoundError as error:
        raise _not_cached(name, revision) from error
    except EntryNotFoundError:
        return None
    except (HfHubHTTPError, OSError) as error:
        raise _refused(name, revision, error) from error


def _not_cached(name: str, revision: str) -> ThunderError:
    at = "" if revision == constants.DEFAULT_REVISION else f" --revision {revision}"
    why = "HF_HUB_OFFLINE is set" if is_offline() else "the hub cannot be reached"
    return ModelNotFound(
        f"there is no folder {name!r}, and the hub's model of that name is not, or not whole, in the local cache "
        f"({os.fspath(constants.HF_HUB_CACHE)}), while {why}",
        fix=f"run `hf download {name}{at}` on a machine with a network, and set HF_HOME to the cache that it filled",
    )


REFUSALS: tuple[tuple[type[Exception], str, str], ...] = (
    (GatedRepoError, "is gated", "accept its terms on the hub, then run `hf auth login`"),
    (RepositoryNotFoundError, "does not exist on the hub, or is private", "check the name, or run `hf auth login`"),
    (RevisionNotFoundError, "has no revision {revision!r}", "name a branch, tag or commit that it has"),
)


def _refused(name: str, revision: str, error: Exception) -> ThunderError:
    for kind, verdict, fix in REFUSALS:
        if isinstance(error, kind):
            why = verdict.format(revision=revision)
            return ModelNotFound(f"there is no folder {name!r}, and {name} {why}", fix=fix)
    return ModelNotFound(
        f"{name} could not be downloaded: {str(error).splitlines()[0]}", fix="check the network, or name a folder"
    )
