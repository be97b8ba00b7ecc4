"""A convolution by oneDNN with a weight that is packed once, and the operations that follow it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch.nn.utils.fusion import fuse_conv_bn_weights

from thunder_core.backend.fusion.prepared_weights import PreparedWeights

Ints: TypeAlias = tuple[int, ...]
Settings: TypeAlias = tuple[Any, ...]  # stride, padding, dilation, groups, eps, and the size of the input
# By activation: oneDNN's name, and the numbers and the algorithm that it takes.
ACTIVATIONS: dict[str, tuple[str, list[float | None], str]] = {
    "": ("none", [], ""),
    "relu": ("relu", [], ""),
    "relu6": ("hardtanh", [0.0, 6.0], ""),
    "silu": ("swish", [], ""),
    "gelu": ("gelu", [], "none"),
}


@dataclass(frozen=True)
class Packed:
    """A packed weight, and the bias that belongs to it."""

    weight: torch.Tensor
    bias: torch.Tensor | None


PREPARED: PreparedWeights[Packed] = PreparedWeights()


def convolution(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    statistics: Sequence[torch.Tensor | None],
    other: torch.Tensor | None,
    *,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    groups: int,
    eps: float = 0.0,
    activation: str = "",
    size: Ints | None = None,
    result_stride: Ints = (),
) -> torch.Tensor:
    """Return the activation of the normalized convolution of x [batch, in, height, width], plus `other`.

    `statistics` are the mean, variance, weight and bias of a batch normalization; it is empty if none follows. The
    packed weight is kept as long as the weight lives, and is made again if a version counter or an address has changed.
    `size` is the size of the input for which the weight is packed, if it is constant.
    """
    tensors, packing = (weight, bias, *statistics), (stride, padding, dilation, groups, eps, size)
    packed = PREPARED.form_of(tensors, partial(pack, tensors, packing), packing)
    name, numbers, algorithm = ACTIVATIONS[activation]
    settings = (packed.weight, packed.bias, padding, stride, dilation, groups)
    if other is None:
        result: torch.Tensor = torch.ops.mkldnn._convolution_pointwise(x, *settings, name, numbers, algorithm)
    else:
        unary = None if name == "none" else name
        result = torch.ops.mkldnn._convolution_pointwise.binary(
            x, other, *settings, "add", 1.0, unary, numbers, algorithm
        )
    if result_stride and result.stride() != result_stride:
        result = torch.empty_strided(result.shape, result_stride).copy_(result)
    return result


def pack(tensors: Sequence[torch.Tensor | None], settings: Settings) -> Packed:
    """Return a weight in oneDNN's layout, with the batch normalization that follows in the weight and the bias."""
    (weight, bias, *statistics), (stride, padding, dilation, groups, eps, size) = tensors, settings
    assert weight is not None
    with torch.no_grad():
        weight = weight.detach()
        if statistics:
            mean, variance, scale, shift = statistics
            assert mean is not None and variance is not None
            weight, bias = fuse_conv_bn_weights(weight, bias, mean, variance, eps, scale, shift)
        packed = torch.ops.mkldnn._reorder_convolution_weight(weight, padding, stride, dilation, groups, size)
        return Packed(packed, None if bias is None else bias.detach())
