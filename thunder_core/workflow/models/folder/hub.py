"""Find models by Hub name in the local cache, and download them if the network may be used."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
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
from thunder_core.foundation.errors.tree import message_line
from thunder_core.workflow.models.folder.checkpoint import checkpoint_files, shards_of
from thunder_core.workflow.models.folder.folder import CONFIG_FILE, read_json
from thunder_core.workflow.models.folder.foreign_formats import (
    ADAPTER,
    INDEX,
    PICKLED_FILES,
    PIPELINE,
    SINGLE_FILE,
    refuse_other_kinds,
)
from thunder_core.workflow.models.sentences.folder import MODULES, files_of_modules

TRANSFORMER_SUFFIXES = ("Model", "ForMaskedLM")  # suffixes of the model classes that sentence-transformers uses


@dataclass(frozen=True)
class HubModel:
    """A Hub model at a commit, with its folder in the local cache."""

    name: str
    commit: str
    folder: Path


def is_hub_name(name: str) -> bool:
    """Whether a string can be a Hub name: `name` or `owner/name`."""
    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True


def is_cached(name: str, revision: str | None = None) -> bool:
    """Whether the local cache has the config of the model with this name."""
    return cached_model(name, revision) is not None


def cached_model(name: str, revision: str | None = None) -> HubModel | None:
    """Return the model with this name if its config is in the local cache, otherwise None. Weights may be missing."""
    config = _cached_file(name, CONFIG_FILE, revision or constants.DEFAULT_REVISION)
    return None if config is None else _of_config(name, config)


def missing_weights(model: HubModel) -> tuple[str, ...]:
    """Return the weight files that the local cache lacks; raise `BadModelFolder` for a bad index.

    If the cache has neither the single weight file nor the index, return the first of these files that the Hub may
    have. If the Hub is known to have neither, return no file.
    """
    if _cached_file(model.name, SINGLE_FILE, model.commit) is not None:
        return ()
    index = _cached_file(model.name, INDEX, model.commit)
    if index is not None:
        return tuple(
            shard for shard in sorted(shards_of(index)) if _cached_file(model.name, shard, model.commit) is None
        )
    return tuple(file for file in (SINGLE_FILE, INDEX) if not _is_known_absent(model.name, file, model.commit))[:1]


def require_weights(model: HubModel) -> None:
    """Raise `ModelNotFound` if the local cache lacks weights, and `BadModelFolder` if its weights are bad."""
    refuse_other_kinds(model.folder)
    missing = missing_weights(model)
    if missing:
        raise _not_cached_error(model.name, model.commit, missing)
    checkpoint_files(model.folder)


def is_offline() -> bool:
    """Whether the network may not be used, so that only the local cache is read."""
    return bool(constants.is_offline_mode())


def find_on_hub(name: str, revision: str | None) -> HubModel:
    """Return the model with this name, after fetching its config; raise `ModelNotFound` if it does not exist.

    Unless the cache has the complete model, the modules of a sentence-transformers model are fetched too. If the cache
    has all weights, an unreachable Hub is no error; `are_stages_unknown` then remains true.
    """
    config = _fetch(name, CONFIG_FILE, revision or constants.DEFAULT_REVISION)
    if config is None:
        refuse_other_repositories(name, revision or constants.DEFAULT_REVISION)
        raise ModelNotFound(f"{name} on the Hub has no {CONFIG_FILE}", fix="name a model of the transformers library")
    model = _of_config(name, config)
    if not is_offline() and missing_weights(model):
        fetch_stages(model)
    elif not is_offline() and are_stages_unknown(model):
        with suppress(ModelNotFound):
            fetch_stages(model)
    return model


def are_stages_unknown(model: HubModel) -> bool:
    """Whether a model may belong to sentence-transformers, although the local cache lacks its list of modules.

    sentence-transformers only uses base models and masked language models.
    """
    if _cached_file(model.name, MODULES, model.commit) is not None or _is_known_absent(
        model.name, MODULES, model.commit
    ):
        return False
    names = read_json(model.folder / CONFIG_FILE).get("architectures") or ()
    return any(str(name).endswith(TRANSFORMER_SUFFIXES) for name in names)


def fetch_stages(model: HubModel) -> None:
    """Download the list of modules of a sentence-transformers model, and the files of these modules."""
    if _fetch(model.name, MODULES, model.commit) is None:
        return
    for file in files_of_modules(model.folder):
        _fetch(model.name, file, model.commit)


def refuse_other_repositories(name: str, revision: str) -> None:
    """Raise `BadModelFolder` if the Hub repository with this name is an adapter or a pipeline."""
    for mark in (ADAPTER, PIPELINE):
        folder = _fetch(name, mark, revision)
        if folder is not None:
            refuse_other_kinds(folder.parent)


def fetch_weights(model: HubModel) -> None:
    """Download a model's safetensors files into the cache; raise `ModelNotFound` if this fails."""
    missing = missing_weights(model)
    if missing and is_offline():
        raise _not_cached_error(model.name, model.commit, missing)
    if not missing or (SINGLE_FILE in missing and _fetch(model.name, SINGLE_FILE, model.commit) is not None):
        return
    index = _fetch(model.name, INDEX, model.commit)
    for shard in sorted(shards_of(index)) if index is not None else ():
        _fetch(model.name, shard, model.commit)


def fetch_code(model: HubModel) -> None:
    """Download the Python files of a model with trusted code into the cache; raise `ModelNotFound` on failure."""
    try:
        huggingface_hub.snapshot_download(
            model.name,
            revision=model.commit,
            allow_patterns="*.py",
            cache_dir=constants.HF_HUB_CACHE,
            local_files_only=is_offline(),
        )
    except (HfHubHTTPError, OSError) as error:
        raise _download_error(model.name, model.commit, error) from error


def _of_config(name: str, config: Path) -> HubModel:
    return HubModel(name=name, commit=config.parent.name, folder=config.parent)


def _is_known_absent(name: str, filename: str, revision: str) -> bool:
    """Whether the local cache has recorded that the Hub does not have a file."""
    path = huggingface_hub.try_to_load_from_cache(name, filename, cache_dir=constants.HF_HUB_CACHE, revision=revision)
    return path is huggingface_hub._CACHED_NO_EXIST


def _cached_file(name: str, filename: str, revision: str) -> Path | None:
    path = huggingface_hub.try_to_load_from_cache(name, filename, cache_dir=constants.HF_HUB_CACHE, revision=revision)
    return Path(path) if isinstance(path, str) else None


def _fetch(name: str, filename: str, revision: str) -> Path | None:
    """Return a file of a model from the cache, after downloading it if needed; None if the Hub lacks the file."""
    cached = _cached_file(name, filename, revision)
    if cached is not None:
        return cached
    try:
        return Path(
            huggingface_hub.hf_hub_download(name, filename, revision=revision, cache_dir=constants.HF_HUB_CACHE)
        )
    except LocalEntryNotFoundError as error:
        raise _not_cached_error(name, revision, (filename,)) from error
    except EntryNotFoundError:
        return None
    except (HfHubHTTPError, OSError) as error:
        raise _download_error(name, revision, error) from error


def _not_cached_error(name: str, revision: str, missing: Sequence[str]) -> ThunderError:
    """Return the error for a model with missing files in the local cache that cannot be downloaded."""
    circumstance = "while HF_HUB_OFFLINE is set" if is_offline() else "while the hub cannot be reached"
    cache = f"the local cache ({os.fspath(constants.HF_HUB_CACHE)})"
    fetch = f"run `hf download {name}{_revision_option(name, revision)}` on a machine with a network, and set HF_HOME"
    if CONFIG_FILE in missing:
        return ModelNotFound(
            f"there is no folder {name!r}, and the Hub model of this name is not in {cache}, {circumstance}",
            fix=f"{fetch} to that cache",
        )
    more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
    return ModelNotFound(
        f"the Hub model {name} is incomplete in {cache}, {circumstance}: it lacks {', '.join(missing[:3])}{more}"
        f"{_pickled_note(name, revision)}",
        fix=f"{fetch} to that cache; --random-weights builds the model from its config alone",
    )


def _revision_option(name: str, revision: str) -> str:
    """Return the option of the Hub's client that names a revision; empty for the default revision."""
    plain = cached_model(name)
    default_revisions = {constants.DEFAULT_REVISION, *(() if plain is None else (plain.commit,))}
    return "" if revision in default_revisions else f" --revision {revision}"


def _pickled_note(name: str, revision: str) -> str:
    """Return a note about pickled weights of a model in the local cache, for the end of a sentence, or nothing."""
    pickled = [file for file in PICKLED_FILES if _cached_file(name, file, revision) is not None]
    return f" ({pickled[0]} exists, but Thunder does not read pickled weights)" if pickled else ""


_HUB_ERRORS: tuple[tuple[type[Exception], str, str], ...] = (
    (GatedRepoError, "is gated", "accept its terms on the Hub, then run `hf auth login`"),
    (RepositoryNotFoundError, "does not exist on the Hub, or is private", "check the name, or run `hf auth login`"),
    (RevisionNotFoundError, "has no revision {revision!r}", "use an existing branch, tag or commit"),
)


def _download_error(name: str, revision: str, error: Exception) -> ThunderError:
    """Return the error for a download that failed: a refusal of the Hub, an unusable cache or a network error."""
    for kind, verdict, fix in _HUB_ERRORS:
        if isinstance(error, kind):
            why = verdict.format(revision=revision)
            return ModelNotFound(f"there is no folder {name!r}, and {name} {why}", fix=fix)
    if isinstance(error, OSError) and error.filename is not None:  # errors of the network name no file
        return ModelNotFound(
            f"the Hub's cache cannot be used for {name}: {error.filename}: {error.strerror}",
            fix="set HF_HOME to a folder that this user can write to",
        )
    return ModelNotFound(
        f"{name} could not be downloaded: {message_line(error)}", fix="check the network, or name a folder"
    )
