"""Models of diffusers from tiny configs, with the random inputs of `thunder optimize`."""

from __future__ import annotations

from typing import Any

import torch

from tests.models.diffusion_models import MODELS
from tests.zoo.shelves import Subject
from thunder_core.workflow.models.diffusion.config import config_of_model
from thunder_core.workflow.models.diffusion.inputs import diffusers_inputs
from thunder_core.workflow.models.inputs.random_inputs import RandomInputs

BATCH, TOKENS = 2, 5


def types() -> list[str]:
    """The names of the models."""
    return list(MODELS)


def subject(name: str) -> Subject:
    """The model with random weights, and random samples."""
    torch.manual_seed(0)
    model: Any = MODELS[name]()
    config = config_of_model(model)

    def inputs(batch: int) -> dict[str, Any]:
        return diffusers_inputs(RandomInputs.from_seed(config, batch=batch, seq=TOKENS, seed=1))

    return Subject(model, inputs, (BATCH,))
