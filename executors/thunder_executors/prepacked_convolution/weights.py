"""Weights in the layouts that the kernels read, packed once together with the batch normalization that follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_weights

from thunder_core.backend.fusion.prepared_weights import PreparedWeights
from thunder_executors.packed_linear.huge_pages import HUGE_PAGES

Tensors = Sequence[torch.Tensor | None]
# The transform of a kernel of three weights by Winograd's algorithm F(2, 3): Lavin and Gray, "Fast Algorithms for
# Convolutional Neural Networks" (2016), equation 7.
TRANSFORM = ((1.0, 0.0, 0.0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0.0, 0.0, 1.0))


@dataclass(frozen=True)
class Packed:
    """A packed weight, and the bias that belongs to it."""

    weight: torch.Tensor
    bias: torch.Tensor | None


PREPARED: PreparedWeights[Packed] = PreparedWeights()


def packed_weights(tensors: Tensors, eps: float, method: str, panel: int) -> Packed:
    """Return the weight and the bias of a convolution for a method whose panels have this number of channels.

    The tensors are the weight [out, in / groups, height, width], the bias or None, and the mean, variance, weight and
    bias of a batch normalization, if one follows. The result is kept as long as the weight lives, and the weight is
    packed again if a version counter or an address has changed.
    """
    return PREPARED.form_of(tensors, partial(pack, tensors, eps, method, panel), (eps, method, panel))


def pack(tensors: Tensors, eps: float, method: str, panel: int) -> Packed:
    """Return a weight in the layout of a method, and the bias."""
    weight, bias = fold_normalization(tensors, eps)
    return Packed(LAYOUTS[method](weight, panel), None if bias is None else bias.contiguous())


def fold_normalization(tensors: Tensors, eps: float) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return a detached weight and bias that include the batch normalization that follows."""
    with torch.no_grad():
        weight, bias, *statistics = (None if tensor is None else tensor.detach() for tensor in tensors)
        assert weight is not None
        if not statistics:
            return weight, bias
        mean, variance, scale, shift = statistics
        assert mean is not None and variance is not None
        weight, bias = fuse_conv_bn_weights(weight, bias, mean, variance, eps, scale, shift)
        return weight.detach(), bias.detach()


def direct_weight(weight: torch.Tensor, panel: int) -> torch.Tensor:
    """Return a weight as panels [panels, height, width, in, panel]; missing channels are zeros."""
    return _panels(weight.permute(2, 3, 1, 0).flatten(0, 2), panel)


def planes_weight(weight: torch.Tensor, panel: int) -> torch.Tensor:
    """Return a weight as panels [panels, height, in, width, panel]; missing channels are zeros."""
    return _panels(weight.permute(2, 1, 3, 0).flatten(0, 2), panel)


def winograd_weight(weight: torch.Tensor, panel: int) -> torch.Tensor:
    """Return a weight with 3 x 3 kernels, transformed by Winograd's algorithm: [panels, 4 * 4, in, panel]."""
    transform = torch.tensor(TRANSFORM, dtype=torch.float64, device="cpu")
    kernels = transform @ weight.permute(1, 0, 2, 3).double() @ transform.T  # [in, out, 4, 4]
    return _panels(kernels.float().permute(2, 3, 0, 1).flatten(0, 2), panel)


def depthwise_weight(weight: torch.Tensor, panel: int) -> torch.Tensor:
    """Return a weight of one input channel for each output channel as [height, width, channels]."""
    return weight[:, 0].permute(1, 2, 0).contiguous()


def _panels(rows: torch.Tensor, panel: int) -> torch.Tensor:
    """Return rows of channels as panels [panels, rows, panel]; missing channels are zeros."""
    padded = functional.pad(rows, (0, -rows.shape[1] % panel))
    panels = padded.view(rows.shape[0], -1, panel).permute(1, 0, 2)
    return HUGE_PAGES.empty(panels.numel()).view(panels.shape).copy_(panels)


LAYOUTS = {
    "direct": direct_weight,
    "planes": planes_weight,
    "Winograd": winograd_weight,
    "depthwise": depthwise_weight,
}
