"""The plan for loading a model, and the loaded model with its weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from transformers import PretrainedConfig

from thunder_core.workflow.models.folder.origin import FolderOrigin, SampleOrigin
from thunder_core.workflow.models.request.dtype import parse_dtype

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class LoadingPlan:
    """The checked request for a model: its origin, config, task, dtype and device.

    `names_task` is True if the user has named the task.
    """

    origin: FolderOrigin | SampleOrigin
    config: PretrainedConfig
    task: str
    dtype: torch.dtype | None
    device: torch.device
    notes: tuple[str, ...]
    names_task: bool = False


class StoredModel(NamedTuple):
    """A model with its weights, caveats about the weights, and notes."""

    model: PreTrainedModel
    caveats: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def described_dtype(plan: LoadingPlan) -> torch.dtype:
    """Return the requested dtype, otherwise the dtype of the config, otherwise float32."""
    dtype = plan.dtype or plan.config.dtype or torch.float32
    return dtype if isinstance(dtype, torch.dtype) else parse_dtype(dtype)
