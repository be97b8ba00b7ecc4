"""Find the model in a diffusers folder, without PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from thunder_core.foundation.errors import BadModelFolder
from thunder_core.workflow.models.folder.folder import CONFIG_FILE, read_json
from thunder_core.workflow.models.folder.foreign_formats import PIPELINE, folders_with

DENOISERS = ("unet", "transformer")  # the components of a pipeline that take most of its time


def is_diffusers_config(content: Mapping[str, Any]) -> bool:
    """Whether the content of a config describes a diffusers model."""
    return isinstance(content.get("_class_name"), str) and "model_type" not in content


def denoiser_folder(root: Path) -> Path:
    """Return the folder of the denoiser in a diffusers pipeline; other folders unchanged."""
    if not (root / PIPELINE).is_file() or (root / CONFIG_FILE).is_file():
        return root
    denoiser = next((root / name for name in DENOISERS if (root / name / CONFIG_FILE).is_file()), None)
    if denoiser is None:
        name = read_json(root / PIPELINE).get("_class_name") or "a pipeline"
        parts = folders_with(root, CONFIG_FILE)
        raise BadModelFolder(
            f"{root} holds a diffusers pipeline ({name}) without a component {' or '.join(DENOISERS)}",
            fix=f"name the folder of a component: {', '.join(parts[:3])}" if parts else "download the components",
        )
    return denoiser
