"""The origin of an artifact: its model, its recipe, and the traced calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from thunder_core.backend.claiming.device_code import DeviceCode
from thunder_core.workflow.artifact.format.manifest import GenerationFacts


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The model and the recipe of an artifact.

    `source` is plain data from which the model is rebuilt (`LoadedModel.source`), or empty. `fingerprint` is the
    fingerprint of the model's structure. `tolerance` is the tolerance of the validation, if there was one.
    """

    source: Mapping[str, object]
    fingerprint: str
    recipe: str = ""
    options: Mapping[str, object] = field(default_factory=dict)
    tolerance: Mapping[str, float] | None = None


@dataclass(frozen=True, kw_only=True)
class TracedCalls:
    """The calls that were traced for the programs of an artifact.

    `example` has the traced keyword arguments; if they are random, `random_inputs` has their sizes and their seed.
    `dynamic` has the ranges of sizes that the programs support, or `generation` the prompt lengths and numbers of new
    tokens. `train` is True for training. `kernels` are cross-compiled machine code for a GPU of the architecture
    `target` (`sm_90`); without a target, the kernels for this machine's GPUs are compiled and written.
    """

    example: Mapping[str, torch.Tensor] = field(default_factory=dict)
    random_inputs: Mapping[str, int] = field(default_factory=dict)
    dynamic: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    generation: GenerationFacts | None = None
    train: bool = False
    target: str = ""
    kernels: Sequence[DeviceCode] = ()
