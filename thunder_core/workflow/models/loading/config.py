"""Read a config of the transformers library, and refuse unsupported configs before any heavy work."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import transformers
from transformers import CONFIG_MAPPING, AutoConfig, PretrainedConfig

from thunder_core.foundation.errors import BadModelFolder, UnknownArchitecture
from thunder_core.foundation.similar_names import nearest
from thunder_core.workflow.models.folder.folder import CONFIG_FILE
from thunder_core.workflow.models.loading.load_errors import loading_errors
from thunder_core.workflow.models.loading.model_folder import ModelFolder, architecture_of, has_class
from thunder_core.workflow.models.request.task import is_class_of


def read_transformers_config(folder: ModelFolder) -> PretrainedConfig:
    """Return the config of a folder; raise `BadModelFolder` or `UnknownArchitecture`."""
    path, file = folder.folder, folder.folder / CONFIG_FILE
    if "auto_map" not in folder.content:
        require_architecture(path, folder.content, folder.task)
    with loading_errors(file, "is not a valid config of its family"):
        config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=folder.trust_remote_code)
    if not isinstance(config, PretrainedConfig):
        raise BadModelFolder(f"{file} does not describe a model", fix="name the folder of a model")
    return config


def require_architecture(folder: Path, content: Mapping[str, Any], task: str | None) -> None:
    """Raise `UnknownArchitecture` if the installed transformers library lacks the family or the class of a config."""
    family = content.get("model_type")
    if not isinstance(family, str):
        raise BadModelFolder(
            f"{folder / CONFIG_FILE} has no model_type, so the architecture of the model is not known",
            fix="use the config.json that `model.save_pretrained(FOLDER)` writes",
        )
    if family not in CONFIG_MAPPING:
        raise _unknown_architecture(folder, "family", family, list(CONFIG_MAPPING.keys()))
    named = architecture_of(content)
    if named is not None and task is None:
        if not has_class(named):
            raise _unknown_architecture(folder, "class", named, class_names())
        require_own_class(folder, family, named)


def require_own_class(folder: Path, family: str, named: str) -> None:
    """Raise `BadModelFolder` if a config names a class of a different family.
    The module of a class is imported only if the library's tables do not list the class for the family.
    """
    if is_class_of(family, named):
        return
    config_class = getattr(getattr(transformers, named), "config_class", None)
    config_type = getattr(config_class, "model_type", "")
    is_own = isinstance(config_class, type) and issubclass(CONFIG_MAPPING[family], config_class)
    if config_type and config_type != family and not is_own:
        raise BadModelFolder(
            f"{folder / CONFIG_FILE} says that the model is of the family {family!r}, and names {named}, "
            f"which is of the family {config_type!r}",
            fix="use the config.json that was saved with these weights, or say with --task what the model is for",
        )


def _unknown_architecture(folder: Path, kind: str, name: str, known_names: list[str]) -> UnknownArchitecture:
    near, version = nearest(name, known_names), transformers.__version__
    meant = f"if {' or '.join(near)} was meant, correct the config; " if near else ""
    otherwise = "" if kind == "family" else ", or set --task"
    return UnknownArchitecture(
        f"{folder / CONFIG_FILE} names the {kind} {name!r}, which transformers {version} does not have",
        fix=f"{meant}a newer version may support it: `pip install --upgrade transformers`{otherwise}",
    )


def class_names() -> list[str]:
    """Return the names of the model classes in the installed transformers library."""
    return [name for name in dir(transformers) if "Model" in name or "For" in name]
