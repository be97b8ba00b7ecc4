"""Measure the loss of a candidate: the difference of its outputs from the original model's in eager PyTorch."""

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
    """The relative error of the outputs, and for logits the KL divergence and the top-1 agreement.

    A value that was not compared is None.
    """

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
    """Return the loss over the inputs with these numbers; raise `QualityLost` if the loss exceeds the bound."""
    models = torch.nn.Identity(), torch.nn.Identity()  # placeholders: `call` runs one of the two functions instead
    runs = {id(models[0]): eager, id(models[1]): candidate}

    def call(model: torch.nn.Module, number: int) -> object:
        return wide_tensors(runs[id(model)](number))

    calls = [partial(call, number=number) for number in numbers]
    quality = measure_quality(*models, calls, bound or ANY_QUALITY, language_model=True)
    if not quality.passed:
        raise QualityLost(
            f"it differs from eager PyTorch by more than a narrower dtype may: {'; '.join(quality.failures)}",
            fix="use another dtype",
        )
    return Loss(quality.error, quality.kl, quality.top1, quality.kl is not None)


def wide_tensors(output: object) -> dict[str, torch.Tensor]:
    """Return the tensors of an output by name; float16 and bfloat16 become float32, so that dtypes can be compared."""
    tensors = leaves_of(output).tensors
    narrow = (torch.float16, torch.bfloat16)
    return {name: tensor.float() if tensor.dtype in narrow else tensor for name, tensor in tensors.items()}
