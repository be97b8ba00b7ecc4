"""The table of the kinds of models."""

from __future__ import annotations

from transformers import PretrainedConfig

from thunder_core.workflow.models.diffusion.kind import DIFFUSERS
from thunder_core.workflow.models.kinds.kind import ModelKind
from thunder_core.workflow.models.kinds.transformers import TIMM, TRANSFORMERS
from thunder_core.workflow.models.loading.model_folder import ModelFolder
from thunder_core.workflow.models.sentences.kind import SENTENCES

# The first kind that recognizes a model is its kind; `TRANSFORMERS` recognizes all models.
KINDS: tuple[ModelKind, ...] = (SENTENCES, DIFFUSERS, TIMM, TRANSFORMERS)


def kind_of_folder(folder: ModelFolder) -> ModelKind:
    """Return the kind of the model in a folder, whose config is not read yet."""
    return next(kind for kind in KINDS if kind.has_folder(folder))


def kind_of(config: PretrainedConfig) -> ModelKind:
    """Return the kind of the model that a config describes."""
    return next(kind for kind in KINDS if kind.has_config(config))
