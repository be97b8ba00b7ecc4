"""A diffusers denoiser with its training loss, as one module.

Programs of artifacts refer to this Python module, so it does not import diffusers.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional

from thunder_core.tracing.library.model_output import ModelOutput


class DenoisingStep(nn.Module):
    """A denoiser that also returns the mean squared error of its prediction, like the training scripts of diffusers.

    The target is what the model is trained to predict: the noise, the velocity, or the flow from the sample to noise.
    """

    main_input_name = "sample"

    def __init__(self, denoiser: nn.Module) -> None:
        """Wrap a diffusers model."""
        super().__init__()
        self.denoiser: Any = denoiser

    @property
    def config(self) -> Any:
        """The config of the denoiser."""
        return self.denoiser.config

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the denoiser."""
        return cast(torch.dtype, self.denoiser.dtype)

    @property
    def device(self) -> torch.device:
        """The device of the denoiser."""
        return cast(torch.device, self.denoiser.device)

    def forward(self, target: torch.Tensor, **inputs: Any) -> ModelOutput:
        """Return the `loss` for a target, and the `sample` that the denoiser predicts from its inputs."""
        sample = self.denoiser(**inputs)[0]
        return ModelOutput({"loss": denoising_loss(sample, target), "sample": sample})


def denoising_loss(sample: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the mean squared error of a prediction, in float32 or a wider dtype.

    A model that also predicts variances has twice the channels of the target. The variances are left out.
    """
    if sample.shape[1] == 2 * target.shape[1]:
        sample = sample.chunk(2, dim=1)[0]
    wide = torch.promote_types(sample.dtype, torch.float32)
    return functional.mse_loss(sample.to(wide), target.to(wide))
