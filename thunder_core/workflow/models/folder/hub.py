"""Models that are named by their hub name: from the local cache, or downloaded when there is a network."""

from __future__ import annotations

import os
from collections.abc import Sequence
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

from thunder_core.foundation.errors import ModelNotFound, ThunderError
from thunder_core.workflow.models.folder.checkpoint import checkpoint_files, shards_of
from thunder_core.workflow.models.folder.folder import CONFIG_FILE
from thunder_core.workflow.models.folder.foreign_formats import (
    ADAPTER,
    INDEX,
    PICKLED,
    PIPELINE,
    SINGLE,
    refuse_other_kinds,
)


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
    return cached_model(name, revision) is not None


def cached_model(name: str, revision: str | None = None) -> HubModel | None:
    """The model of that name whose config is in the local cache, whatever else of it is; None where it is not."""
    config = _cached(name, CONFIG_FILE, revision or constants.DEFAULT_REVISION)
    return None if config is None else _of_config(name, config)


def missing_weights(model: HubModel) -> tuple[str, ...]:
    """The files of a model's weights that the local cache lacks, as far as it tells; `BadModelFolder` for a bad index.

    Where neither the weights nor their index are there, it is the one file that weights are in first of all; where the
    hub is known to have neither, nothing is missing.
    """
    if _cached(model.name, SINGLE, model.commit) is not None:
        return ()
    index = _cached(model.name, INDEX, model.commit)
    if index is not None:
        return tuple(shard for shard in sorted(shards_of(index)) if _cached(model.name, shard, model.commit) is None)
    return tuple(file for file in (SINGLE, INDEX) if not _is_known_absent(model.name, file, model.commit))[:1]


def require_weights(model: HubModel) -> None:
    """Raise `ModelNotFound` where the local cache lacks weights, and `BadModelFolder` where those it has are bad."""
    refuse_other_kinds(model.folder)
    missing = missing_weights(model)
    if missing:
        raise _not_cached(model.name, model.commit, missing)
    checkpoint_files(model.folder)


def is_offline() -> bool:
    """Whether the network may not be used, so that only the local cache is asked."""
    return bool(constants.is_offline_mode())


def find_on_hub(name: str, revision: str | None) -> HubModel:
    """The model of that name, its config in the cache; raises `ModelNotFound`."""
    config = _fetch(name, CONFIG_FILE, revision or constants.DEFAULT_REVISION)
    if config is None:
        refuse_other_repositories(name, revision or constants.DEFAULT_REVISION)
        raise ModelNotFound(f"{name} on the Hub has no {CONFIG_FILE}", fix="name a model of the transformers library")
    return _of_config(name, config)


def refuse_other_repositories(name: str, revision: str) -> None:
    """Raise `BadModelFolder` where what the hub has under that name is an adapter or a pipeline."""
    for mark in (ADAPTER, PIPELINE):
        found = _fetch(name, mark, revision)
        if found is not None:
            refuse_other_kinds(found.parent)


def fetch_weights(model: HubModel) -> None:
    """Bring a model's safetensors into the cache; raises `ModelNotFound` where it cannot."""
    missing = missing_weights(model)
    if missing and is_offline():
        raise _not_cached(model.name, model.commit, missing)
    if not missing or (SINGLE in missing and _fetch(model.name, SINGLE, model.commit) is not None):
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


def _of_config(name: str, config: Path) -> HubModel:
    return HubModel(name=name, commit=config.parent.name, folder=config.parent)


def _is_known_absent(name: str, filename: str, revision: str) -> bool:
    """Whether the local cache knows that the hub does not have a file."""
    found = huggingface_hub.try_to_load_from_cache(name, filename, cache_dir=constants.HF_HUB_CACHE, revision=revision)
    return found is huggingface_hub._CACHED_NO_EXIST


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
        raise _not_cached(name, revision, (filename,)) from error
    except EntryNotFoundError:
        return None
    except (HfHubHTTPError, OSError) as error:
        raise _refused(name, revision, error) from error


def _not_cached(name: str, revision: str, missing: Sequence[str]) -> ThunderError:
    """The error for a model of which the local cache lacks these files, and which cannot be fetched."""
    while_ = f"while {'HF_HUB_OFFLINE is set' if is_offline() else 'the hub cannot be reached'}"
    cache = f"the local cache ({os.fspath(constants.HF_HUB_CACHE)})"
    fetch = f"run `hf download {name}{_revision_option(name, revision)}` on a machine with a network, and set HF_HOME"
    if CONFIG_FILE in missing:
        return ModelNotFound(
            f"there is no folder {name!r}, and the Hub model of this name is not in {cache}, {while_}",
            fix=f"{fetch} to that cache",
        )
    more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
    return ModelNotFound(
        f"the Hub model {name} is incomplete in {cache}, {while_}: it lacks {', '.join(missing[:3])}{more}"
        f"{_held_pickled(name, revision)}",
        fix=f"{fetch} to that cache; --random-weights builds the model from its config alone",
    )


def _revision_option(name: str, revision: str) -> str:
    """The option that names a revision to the hub's client; empty for that which a name alone stands for."""
    plain = cached_model(name)
    known = {constants.DEFAULT_REVISION, *(() if plain is None else (plain.commit,))}
    return "" if revision in known else f" --revision {revision}"


def _held_pickled(name: str, revision: str) -> str:
    """A remark on pickled weights that the local cache has of a model, as the end of a sentence."""
    pickled = [file for file in PICKLED if _cached(name, file, revision) is not None]
    return f" ({pickled[0]} exists, but Thunder does not read pickled weights)" if pickled else ""


REFUSALS: tuple[tuple[type[Exception], str, str], ...] = (
    (GatedRepoError, "is gated", "accept its terms on the Hub, then run `hf auth login`"),
    (RepositoryNotFoundError, "does not exist on the Hub, or is private", "check the name, or run `hf auth login`"),
    (RevisionNotFoundError, "has no revision {revision!r}", "use an existing branch, tag or commit"),
)


def _refused(name: str, revision: str, error: Exception) -> ThunderError:
    for kind, verdict, fix in REFUSALS:
        if isinstance(error, kind):
            why = verdict.format(revision=revision)
            return ModelNotFound(f"there is no folder {name!r}, and {name} {why}", fix=fix)
    return ModelNotFound(
        f"{name} could not be downloaded: {str(error).splitlines()[0]}", fix="check the network, or name a folder"
    )
