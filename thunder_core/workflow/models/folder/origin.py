"""The origin of a model: a sample, a folder or the Hub, as plain data from which the model can be loaded again."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from thunder_core.foundation.descriptions import object_of_class
from thunder_core.foundation.errors import BadModelFolder, BadOption, ModelNotFound, WrongInputs
from thunder_core.workflow.models.adapters.folder import Adapter, read_adapter
from thunder_core.workflow.models.diffusion.folder import denoiser_folder
from thunder_core.workflow.models.folder.folder import CONFIG_FILE
from thunder_core.workflow.models.folder.foreign_formats import ADAPTER, describe_file, is_artifact
from thunder_core.workflow.models.folder.hub import HubModel, cached_model, find_on_hub, is_cached, is_hub_name
from thunder_core.workflow.models.folder.similar_paths import similar_paths, similarity
from thunder_core.workflow.models.request.names import TIMM_PREFIX, timm_architecture
from thunder_core.workflow.models.request.request import ModelRequest, SampleModel
from thunder_core.workflow.models.sentences.folder import transformer_folder

TIMM_CLASS = "TimmWrapperForImageClassification"  # the class of transformers for models of timm
MISTYPED_SIMILARITY = 0.75  # a name this similar to a folder's name is a mistyped path, and not a Hub name


@dataclass(frozen=True)
class FolderOrigin:
    """A model's folder and, if the folder is in the Hub cache, the Hub name and commit.

    `root` is the folder of the complete model; `folder` may be the folder of a part, such as a transformer. With an
    `adapter`, `folder`, `hub` and `root` describe the base model.
    """

    folder: Path
    hub: HubModel | None = None
    root: Path | None = None
    adapter: Adapter | None = None

    @classmethod
    def of(cls, folder: Path, hub: HubModel | None = None) -> FolderOrigin:
        """Return the origin of a folder; raise `BadModelFolder` if its list of modules is damaged."""
        return cls(denoiser_folder(transformer_folder(folder)), hub, folder)

    @property
    def named(self) -> Path:
        """The folder of the complete model."""
        return self.root or self.folder

    def as_dict(self) -> dict[str, object]:
        """Return the origin as plain data."""
        if self.adapter is not None:
            return {"kind": "folder", "path": str(self.adapter.folder)}
        if self.hub is None:
            return {"kind": "folder", "path": str(self.named)}
        return {"kind": "hub", "name": self.hub.name, "commit": self.hub.commit}


@dataclass(frozen=True)
class SampleOrigin:
    """The small sample model of a recipe."""

    sample: SampleModel

    def as_dict(self) -> dict[str, object]:
        """Return the origin as plain data."""
        return {"kind": "sample", "architecture": self.sample.architecture, "config": dict(self.sample.config)}


def find_origin(request: ModelRequest) -> FolderOrigin | SampleOrigin:
    """Return the origin that a request names. Raises `ModelNotFound`, or `BadOption` unless it names one origin."""
    if request.sample is not None and request.model is None:
        return SampleOrigin(request.sample)
    if request.model is None or request.sample is not None:
        raise BadOption("MODEL and a sample exclude each other", fix="name a folder or a Hub model, or leave out MODEL")
    if (architecture := timm_architecture(request.model)) is not None:
        return timm_origin(architecture, random_weights=request.random_weights)
    return find_folder_origin(request.model, request.revision)


def timm_origin(architecture: str, *, random_weights: bool) -> SampleOrigin:
    """Return the origin of an architecture of timm; raise `BadOption` unless its weights are random."""
    if not random_weights:
        raise BadOption(
            f"{TIMM_PREFIX}{architecture} names an architecture without weights",
            fix="use --random-weights, or name the folder of a model of timm, with its config.json and weights",
        )
    return SampleOrigin(SampleModel(TIMM_CLASS, {"architecture": architecture}))


def find_folder_origin(name: str, revision: str | None) -> FolderOrigin:
    """Return the origin of the folder with a name, otherwise of the Hub model; raise `ModelNotFound`."""
    origin = local_origin(name, revision)
    if origin is not None:
        return origin
    hub = find_on_hub(name, revision)
    return FolderOrigin.of(hub.folder, hub)


def find_local_folder(name: str, revision: str | None) -> Path | None:
    """Return the folder with a name, or the cached folder of a Hub model; None if the model must be downloaded."""
    if timm_architecture(name) is not None:
        return None
    origin = local_origin(name, revision)
    cached = cached_model(name, revision) if origin is None else None
    return origin.folder if origin is not None else None if cached is None else transformer_folder(cached.folder)


def local_origin(name: str, revision: str | None = None) -> FolderOrigin | None:
    """Return the origin of the folder with a name; None if there is no folder and the name may be a Hub name.

    Raises `ModelNotFound` for any other name. A missing path is considered mistyped, and not looked up on the Hub, if
    its parent exists or it is similar to an existing path. Exceptions are a name in the Hub cache, and a request with a
    revision.
    """
    path = Path(name).expanduser()
    if _exists(path):
        require_folder(path)
        return adapted_origin(path.resolve()) if (path / ADAPTER).is_file() else FolderOrigin.of(path.resolve())
    near = similar_paths(path)
    meant = f"did you mean {' or '.join(map(str, near))}? " if near else ""
    if not is_hub_name(name):
        raise ModelNotFound(
            f"there is no folder {name!r}, and this is not a valid Hub name either",
            fix=meant.rstrip() or "name a folder that exists",
        )
    if revision is None and is_mistyped(path, near) and not is_cached(name):
        raise ModelNotFound(
            f"there is no folder {name!r}",
            fix=f"{meant}to use the Hub model of this name, download it first: `hf download {name}`",
        )
    return None


def adapted_origin(folder: Path) -> FolderOrigin:
    """Return the origin of an adapter's base model, with the adapter.

    Raises `ModelNotFound` for a missing base model, and `BadModelFolder` for a base model that is an adapter.
    """
    adapter = read_adapter(folder)
    sibling = folder / adapter.base
    if folder in (Path(adapter.base).resolve(), sibling.resolve()):
        raise BadModelFolder(
            f"{folder / ADAPTER} of the adapter names its own folder as the base model",
            fix="write the folder or the Hub name of the base model into that file",
        )
    name = str(sibling) if not _exists(Path(adapter.base)) and _exists(sibling) else adapter.base
    if (Path(name) / ADAPTER).is_file():
        raise BadModelFolder(
            f"{folder} holds an adapter for {adapter.base!r}, which is an adapter itself",
            fix="merge the inner adapter into its base model, and name the result in base_model_name_or_path",
        )
    try:
        base = find_folder_origin(name, None)
    except ModelNotFound as error:
        raise ModelNotFound(
            f"{folder} holds an adapter ({adapter.kind}) for the base model {adapter.base!r}, which is not found: "
            f"{error.what}",
            fix=f"correct base_model_name_or_path in {folder / ADAPTER}, or {error.fix}",
        ) from error
    return replace(base, adapter=adapter)


def is_mistyped(path: Path, near: Sequence[Path]) -> bool:
    """Whether a missing path has an existing parent folder, or is similar to the path of a model or artifact."""
    if path.parent != Path() and path.parent.is_dir():
        return True
    near = [name for name in near if similarity(name, path) >= MISTYPED_SIMILARITY]
    return any((name / CONFIG_FILE).is_file() or is_artifact(name) for name in near)


def require_folder(path: Path) -> None:
    """Raise `ModelNotFound` unless the path is a folder whose files can be listed."""
    if not path.is_dir():
        file_format = describe_file(path)
        raise ModelNotFound(
            f"{path} is a file{f' with {file_format}' if file_format else ''}, but a model is a folder in Hugging Face "
            "layout",
            fix="name the folder of the original weights, as written by `model.save_pretrained(FOLDER)`"
            if file_format
            else f"try the folder of the file: {path.parent}",
        )
    if not os.access(path, os.R_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        raise _unreadable_error(path)


def _exists(path: Path) -> bool:
    try:
        path.stat()
    except PermissionError as error:
        raise _unreadable_error(path) from error
    except OSError:
        return False
    return True


def _unreadable_error(path: Path) -> ModelNotFound:
    return ModelNotFound(f"{path} cannot be read: permission denied", fix="check the permissions of the folder")


def request_of(source: Mapping[str, object]) -> ModelRequest:
    """Return the request that loads the model of a `LoadedModel.source`; raise `WrongInputs` for other data."""
    try:
        return _request_of(source)
    except (LookupError, ValueError, TypeError) as error:
        raise WrongInputs(
            f"the record of the model's origin is not valid: {type(error).__name__}: {error}",
            fix="pass the model: thunder_core.load(folder, model)",
        ) from error


def _request_of(source: Mapping[str, object]) -> ModelRequest:
    kind = source["kind"]
    return ModelRequest(
        model=None if kind == "sample" else _text(source["path" if kind == "folder" else "name"]),
        sample=_sample(source) if kind == "sample" else None,
        revision=None if source.get("commit") is None else _text(source["commit"]),
        task=_text(source["task"]),
        dtype=_text(source["dtype"]),
        device=_text(source["device"]),
        random_weights=bool(source["random_weights"]),
        allow_random_weights=_texts(source.get("allow_random_weights", ())),
        allow_unused_weights=_texts(source.get("allow_unused_weights", ())),
        outputs=None if source.get("outputs") is None else _text(source["outputs"]),
        adapter=None if source.get("adapter") is None else _text(source["adapter"]),
        train=bool(source.get("train", False)),
        seed=int(cast("int", source["seed"])),
        trust_remote_code=bool(source["trust_remote_code"]),
    )


def _sample(source: Mapping[str, object]) -> SampleModel:
    config = source["config"]
    if not isinstance(config, Mapping):
        raise TypeError("the config of a sample must have its arguments")
    return SampleModel(_text(source["architecture"]), config)


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise TypeError(f"{object_of_class(type(value))} is used instead of a list")
    return tuple(map(_text, value))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{object_of_class(type(value))} is used instead of a string")
    return value
