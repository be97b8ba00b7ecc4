"""What a user asks for when naming a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

LARGEST_SEED = 2**63 - 1  # of PyTorch's generators, with room for the seeds that follow it


@dataclass(frozen=True)
class SampleModel:
    """A small model with seeded weights: a class of the transformers library and its config's arguments."""

    architecture: str
    config: Mapping[str, object]


@dataclass(frozen=True)
class ModelRequest:
    """A model by folder, hub name or sample, and how it should be loaded.

    A dtype of `None` leaves it to the checkpoint; a device of `None` to the recipe that the model is for, and is the
    CPU where there is no recipe.
    """

    model: str | None = None
    sample: SampleModel | None = None
    task: str | None = None
    dtype: str | None = None
    device: str | None = None
    random_weights: bool = False
    seed: int = 0
    trust_remote_code: bool = False
    revision: str | None = None
