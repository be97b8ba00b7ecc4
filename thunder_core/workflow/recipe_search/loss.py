"""The loss of a candidate: how far its outputs are from those of eager PyTorch with the model as it was given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from thunder_core.foundation.errors import QualityLost
from thunder_core.foundation.options.quality import Quality
from thunder_core.workflow.validation.leaves import leaves_of
from thunder_core.workflow.validation.quality import measure_quality

ANY_QUALITY = Quality(error=float("inf"), kl=float("inf"))


@dataclass(frozen=True)
class Loss:
    """The error of the outputs and, of logits, the KL divergence and the top-1 agreement; None: not compared."""

    error: float | None = None
    kl: float | None = None
    top1: float | None = None
    has_logits: bool = False


def loss_between(
    eager: Callable[[int], object],
    candidate: Callable[[int], object],
    numbers: Sequence[int],
    bound: Quality | None = None,
) -> Loss:
    """The loss over the inputs of these numbers; raises `QualityLost` where it is more than the bound allows."""
    models = torch.nn.Identity(), torch.nn.Identity()  # which stand for the two: the calls know what to run
    runs = {id(models[0]): eager, id(models[1]): candidate}

    def call(model: torch.nn.Module, number: int) -> object:
        return wide_tensors(runs[id(model)](number))

    calls = [partial(call, number=number) for number in numbers]
    found = measure_quality(*models, calls, bound or ANY_QUALITY, language_model=True)
    if not found.passed:
        raise QualityLost(
            f"it differs from eager PyTorch by more than a narrower dtype may: {'; '.join(found.failures)}",
            fix="use another dtype",
        )
    return Loss(found.error, found.kl, found.top1, found.kl is not None)


def wide_tensors(output: object) -> dict[str, torch.Tensor]:
    """The tensors of an output by name, in float32 where they are narrower: differences are taken between dtypes."""
    found = leaves_of(output).tensors
    narrow = (torch.float16, torch.bfloat16)
    return {name: one.float() if one.dtype in narrow else one for name, one in found.items()}
