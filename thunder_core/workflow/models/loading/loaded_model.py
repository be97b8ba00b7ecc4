"""A model in memory, with its config, origin and notes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from transformers import PretrainedConfig

from thunder_core.workflow.models.loading.fingerprint import structure_fingerprint

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class LoadedModel:
    """A model in eval mode on its device, with its config, task, source and notes from loading.

    `source` is plain data from which `rebuild_model` builds the same model. `fingerprint` is the hash of the structure
    (`structure_fingerprint`), which does not depend on the values of weights or the device. `original` is the loaded
    model, if a recipe has prepared a different model from it. `caveats` are notes that must accompany every verdict on
    the model: random weights, and unused weights of the checkpoint.
    """

    model: PreTrainedModel
    config: PretrainedConfig
    task: str
    source: dict[str, object]
    fingerprint: str
    notes: tuple[str, ...] = ()
    original: PreTrainedModel | None = None
    caveats: tuple[str, ...] = ()

    def with_prepared_model(self, model: torch.nn.Module) -> LoadedModel:
        """Return a copy with the model that a recipe's transforms have prepared; `original` is the loaded model."""
        if model is self.model:
            return self
        prepared = cast("PreTrainedModel", model)
        return dataclasses.replace(
            self, model=prepared, fingerprint=structure_fingerprint(prepared), original=self.model
        )
