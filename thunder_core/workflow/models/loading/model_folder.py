"""A model's folder with its parsed `config.json`, before the model's library reads the config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import transformers
from transformers import CONFIG_MAPPING

from thunder_core.foundation.errors import RemoteCodeRefused
from thunder_core.workflow.models.folder.folder import CONFIG_FILE, code_of_the_hub
from thunder_core.workflow.models.folder.foreign_formats import require_config
from thunder_core.workflow.models.loading.depth import require_depth


@dataclass(frozen=True)
class ModelFolder:
    """The folder of a model, the content of its `config.json`, the requested task, and whether its code is trusted.

    `root` is the folder of the complete model; `folder` may be the folder of a part, such as the transformer.
    """

    folder: Path
    root: Path
    content: Mapping[str, Any]
    task: str | None
    trust_remote_code: bool


def open_model_folder(folder: Path, *, root: Path, task: str | None, trust_remote_code: bool) -> ModelFolder:
    """Return a folder with its config; raise `BadModelFolder` or `RemoteCodeRefused`."""
    content = require_config(folder)
    require_depth(folder / CONFIG_FILE, content)
    if not trust_remote_code:
        refuse_remote_code(folder, content)
    return ModelFolder(folder, root, content, task, trust_remote_code)


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
