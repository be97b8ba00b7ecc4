"""Read a model's `config.json`, and refuse unsupported configs before any heavy work."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import transformers
from transformers import CONFIG_MAPPING, AutoConfig, PretrainedConfig

from thunder_core.foundation.errors import BadModelFolder, RemoteCodeRefused, UnknownArchitecture
from thunder_core.foundation.plugins import nearest
from thunder_core.workflow.models.diffusion.config import diffusers_config
from thunder_core.workflow.models.diffusion.folder import is_diffusers_config
from thunder_core.workflow.models.folder.folder import CONFIG_FILE, code_of_the_hub
from thunder_core.workflow.models.folder.foreign_formats import require_config
from thunder_core.workflow.models.loading.depth import require_depth
from thunder_core.workflow.models.loading.load_errors import loading_errors
from thunder_core.workflow.models.loading.timm_models import is_timm_config, timm_config
from thunder_core.workflow.models.request.task import is_class_of


def load_config(folder: Path, *, trust_remote_code: bool, task: str | None = None) -> PretrainedConfig:
    """Return the config of a folder; raise `BadModelFolder`, `RemoteCodeRefused` or `UnknownArchitecture`."""
    content = require_config(folder)
    require_depth(folder / CONFIG_FILE, content)
    if not trust_remote_code:
        refuse_remote_code(folder, content)
    if is_diffusers_config(content):
        return diffusers_config(folder, content)
    if is_timm_config(content):
        return timm_config(folder, content)
    if "auto_map" not in content:
        require_architecture(folder, content, task)
    with loading_errors(folder / CONFIG_FILE, "is not a valid config of its family"):
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=trust_remote_code)
    if not isinstance(config, PretrainedConfig):
        raise BadModelFolder(f"{folder / CONFIG_FILE} does not describe a model", fix="name the folder of a model")
    return config


def is_native(content: Mapping[str, Any]) -> bool:
    """Whether the installed transformers library has the family and the class of a config."""
    named = architecture_of(content)
    return content.get("model_type") in CONFIG_MAPPING and (named is None or has_class(named))


def has_class(name: str) -> bool:
    """Whether the installed transformers library has a class; the module of the class is not imported."""
    return name in vars(transformers)["__all__"]


def architecture_of(content: Mapping[str, Any]) -> str | None:
    """Return the first class that a config names, or None."""
    named = content.get("architectures")
    return str(named[0]) if isinstance(named, list) and named else None


def refuse_remote_code(folder: Path, content: Mapping[str, Any]) -> None:
    """Raise `RemoteCodeRefused` if the model needs code from its folder or from the Hub."""
    if "auto_map" in content and not is_native(content):
        family = content.get("model_type")
        named = architecture_of(content) if family in CONFIG_MAPPING else f"the family {family!r}"
        raise RemoteCodeRefused(
            f"{folder / CONFIG_FILE} asks to run the folder's own Python code for {named}, "
            f"which transformers {transformers.__version__} does not have",
            fix="read the code, and use --trust-remote-code if you trust it",
        )
    if (named := code_of_the_hub(content)) is not None:
        raise RemoteCodeRefused(
            f"{folder / CONFIG_FILE} asks to download and run code from the Hub, {named!r}",
            fix="read the code, and use --trust-remote-code if you trust it",
        )


def require_architecture(folder: Path, content: Mapping[str, Any], task: str | None) -> None:
    """Raise `UnknownArchitecture` if the installed transformers library lacks the family or the class of a config."""
    family = content.get("model_type")
    if not isinstance(family, str):
        raise BadModelFolder(
            f"{folder / CONFIG_FILE} has no model_type, so the architecture of the model is not known",
            fix="use the config.json that `model.save_pretrained(FOLDER)` writes",
        )
    if family not in CONFIG_MAPPING:
        raise _unknown(folder, "family", family, list(CONFIG_MAPPING.keys()))
    named = architecture_of(content)
    if named is not None and task is None:
        if not has_class(named):
            raise _unknown(folder, "class", named, class_names())
        require_own_class(folder, family, named)


def require_own_class(folder: Path, family: str, named: str) -> None:
    """Raise `BadModelFolder` if a config names a class of a different family.
    The module of a class is imported only if the library's tables do not list the class for the family.
    """
    if is_class_of(family, named):
        return
    config_class = getattr(getattr(transformers, named), "config_class", None)
    other = getattr(config_class, "model_type", "")
    is_own = isinstance(config_class, type) and issubclass(CONFIG_MAPPING[family], config_class)
    if other and other != family and not is_own:
        raise BadModelFolder(
            f"{folder / CONFIG_FILE} says that the model is of the family {family!r}, and names {named}, "
            f"which is of the family {other!r}",
            fix="use the config.json that was saved with these weights, or say with --task what the model is for",
        )


def _unknown(folder: Path, kind: str, name: str, known: list[str]) -> UnknownArchitecture:
    near, version = nearest(name, known), transformers.__version__
    meant = f"if {' or '.join(near)} was meant, correct the config; " if near else ""
    otherwise = "" if kind == "family" else ", or set --task"
    return UnknownArchitecture(
        f"{folder / CONFIG_FILE} names the {kind} {name!r}, which transformers {version} does not have",
        fix=f"{meant}a newer version may support it: `pip install --upgrade transformers`{otherwise}",
    )


def class_names() -> list[str]:
    """Return the names of the model classes in the installed transformers library."""
    return [name for name in dir(transformers) if "Model" in name or "For" in name]
