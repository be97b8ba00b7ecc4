"""The config of a model of diffusers, in the form that Thunder reads configs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import PretrainedConfig

from thunder_core.foundation import plugins
from thunder_core.foundation.errors import PackageMissing, UnknownArchitecture
from thunder_core.tracing.library.denoising.step import DenoisingStep
from thunder_core.workflow.models.loading.load_errors import loading_errors

DIFFUSERS = "diffusers"


class DiffusersConfig(PretrainedConfig):  # type: ignore[no-untyped-call]
    """The class and the settings of a model of diffusers; the model itself has a config of diffusers."""

    model_type = DIFFUSERS
    has_loss: bool = False  # of a denoiser that is loaded for training

    @classmethod
    def of(cls, settings: Mapping[str, Any], name: str) -> DiffusersConfig:
        """Return the config of a model of a class; weights are float32 unless the user asks for another dtype."""
        config = cls(architectures=[name], dtype=torch.float32)
        config.settings = dict(settings)
        return config


def config_of_model(model: Any) -> PretrainedConfig:
    """Return the config of a model of transformers or of diffusers, or of a denoiser with its loss."""
    config = model.config
    if isinstance(config, PretrainedConfig):
        return config
    denoiser = model.denoiser if isinstance(model, DenoisingStep) else model
    return DiffusersConfig.of(config, type(denoiser).__name__)


def is_diffusers(config: PretrainedConfig) -> bool:
    """Whether a config is that of a model of diffusers."""
    return isinstance(config, DiffusersConfig)


def diffusers_config(folder: Path, content: Mapping[str, Any]) -> DiffusersConfig:
    """Return the config in a folder; raise `PackageMissing` and, for an unknown class, `UnknownArchitecture`."""
    name = str(content["_class_name"])
    if not plugins.is_installed(DIFFUSERS):
        raise PackageMissing(
            f"{folder} holds a model of diffusers ({name:.80}), which needs the package diffusers",
            fix="pip install diffusers",
        )
    with loading_errors(folder, "holds a model of diffusers, which cannot be imported"):
        library: Any = plugins.import_object(DIFFUSERS)
        kind = getattr(library, name, None)
        base: Any = library.ModelMixin
    if not isinstance(kind, type) or not issubclass(kind, base):
        raise UnknownArchitecture(
            f"{folder} names the class {name!r:.80}, which diffusers {library.__version__} does not have as a model",
            fix="a newer version may have the class: pip install --upgrade diffusers",
        )
    return DiffusersConfig.of(content, name)


def class_of(config: PretrainedConfig) -> Any:
    """Return the class of diffusers that a config names."""
    return plugins.import_object(f"{DIFFUSERS}:{(config.architectures or [''])[0]}")
