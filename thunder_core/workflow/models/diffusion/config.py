"""The config of a diffusers model, converted to the `PretrainedConfig` that Thunder reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import PretrainedConfig

from thunder_core.foundation import plugins
from thunder_core.foundation.errors import UnknownArchitecture
from thunder_core.tracing.library.denoising.step import DenoisingStep
from thunder_core.workflow.models.loading.load_errors import library_import, require_package

DIFFUSERS = "diffusers"


class DiffusersConfig(PretrainedConfig):  # type: ignore[no-untyped-call]
    """Thunder's config of a diffusers model: the class name and the settings.

    `model.config` is the library's own config; `config_of_model` converts it.
    """

    model_type = DIFFUSERS
    has_loss: bool = False  # whether the model is loaded as a denoiser with its loss, for training

    @classmethod
    def of(cls, settings: Mapping[str, Any], name: str) -> DiffusersConfig:
        """Return the config of a diffusers model whose class is called `name`.

        Weights are float32 unless the user asks for another dtype.
        """
        config = cls(architectures=[name], dtype=torch.float32)
        config.settings = dict(settings)
        return config


def config_of_model(model: Any) -> PretrainedConfig:
    """Return the config of a transformers or diffusers model, or of a denoiser with its loss."""
    config = model.config
    if isinstance(config, PretrainedConfig):
        return config
    denoiser = model.denoiser if isinstance(model, DenoisingStep) else model
    return DiffusersConfig.of(config, type(denoiser).__name__)


def is_diffusers(config: PretrainedConfig) -> bool:
    """Whether a config describes a diffusers model."""
    return isinstance(config, DiffusersConfig)


def diffusers_config(folder: Path, content: Mapping[str, Any]) -> DiffusersConfig:
    """Return the config in a folder.

    Raise `PackageMissing` if diffusers is not installed, and `UnknownArchitecture` if it has no such model class.
    """
    name = str(content["_class_name"])
    require_package(f"{folder} holds a diffusers model ({name:.80})", DIFFUSERS)
    with library_import(folder, DIFFUSERS):
        library: Any = plugins.import_object(DIFFUSERS)
        model_class = getattr(library, name, None)
        base: Any = library.ModelMixin
    if not isinstance(model_class, type) or not issubclass(model_class, base):
        raise UnknownArchitecture(
            f"{folder} names the class {name!r:.80}, which diffusers {library.__version__} does not have as a model",
            fix="a newer version may have the class: pip install --upgrade diffusers",
        )
    return DiffusersConfig.of(content, name)


def class_of(config: PretrainedConfig) -> Any:
    """Return the diffusers class that a config names."""
    return plugins.import_object(f"{DIFFUSERS}:{(config.architectures or [''])[0]}")
