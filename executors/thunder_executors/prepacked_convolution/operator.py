"""A convolution by oneDNN with a weight that is packed once, and the operations that follow it."""

from __future__ import annotations

from functools import partial
from typing import Any, TypeAlias

import torch

from thunder_core.backend.fusion.prepared_weights import PreparedWeights
from thunder_executors.prepacked_convolution.weights import Packed, Tensors, fold_normalization

Ints: TypeAlias = tuple[int, ...]
Settings: TypeAlias = tuple[Any, ...]  # stride, padding, dilation, groups, eps, and the size of the input
# oneDNN's name, numbers and algorithm of each activation.
ACTIVATIONS: dict[str, tuple[str, list[float | None], str]] = {
    "": ("none", [], ""),
    "relu": ("relu", [], ""),
    "relu6": ("hardtanh", [0.0, 6.0], ""),
    "silu": ("swish", [], ""),
    "gelu": ("gelu", [], "none"),
}


PREPARED: PreparedWeights[Packed] = PreparedWeights()


def convolution(
    x: torch.Tensor,
    tensors: Tensors,
    addend: torch.Tensor | None,
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
    """Return the activation of the normalized convolution of x [batch, in, height, width], plus `addend`.

    The tensors are the weight, the bias or None, and the mean, variance, weight and bias of a batch normalization, if
    one follows. The packed weight is kept as long as the weight lives, and the weight is packed again if a version
    counter or an address has changed. `size` is the size of the input for which the weight is packed, if it is
    constant.
    """
    packing = (stride, padding, dilation, groups, eps, size)
    packed = PREPARED.form_of(tensors, partial(pack, tensors, packing), packing)
    name, numbers, algorithm = ACTIVATIONS[activation]
    settings = (packed.weight, packed.bias, padding, stride, dilation, groups)
    if addend is None:
        result: torch.Tensor = torch.ops.mkldnn._convolution_pointwise(x, *settings, name, numbers, algorithm)
    else:
        unary = None if name == "none" else name
        result = torch.ops.mkldnn._convolution_pointwise.binary(
            x, addend, *settings, "add", 1.0, unary, numbers, algorithm
        )
    if result_stride and result.stride() != result_stride:
        result = torch.empty_strided(result.shape, result_stride).copy_(result)
    return result


def pack(tensors: Tensors, settings: Settings) -> Packed:
    """Return a weight in oneDNN's layout, with the batch normalization that follows in the weight and the bias."""
    stride, padding, dilation, groups, eps, size = settings
    weight, bias = fold_normalization(tensors, eps)
    with torch.no_grad():
        packed = torch.ops.mkldnn._reorder_convolution_weight(weight, padding, stride, dilation, groups, size)
    return Packed(packed, bias)
