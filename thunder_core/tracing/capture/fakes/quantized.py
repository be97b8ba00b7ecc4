"""Tensors with a quantized dtype (`torch.qint8` and similar), which have no form without data."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch._subclasses.fake_tensor import UnsupportedFakeTensorException

aten = torch.ops.aten
# PyTorch's messages, and the message for the operators below, whose meta functions return a tensor of floats.
MESSAGES = ("quantized nyi in meta tensors", "'QuantizedMeta' backend")
QUANTIZING = (
    aten.quantize_per_tensor.default,
    aten.quantize_per_tensor.tensor_qparams,
    aten.quantize_per_tensor.tensors,
)


def refuse(*_args: Any, **_kwargs: Any) -> NoReturn:
    """Raise PyTorch's error for an operator that makes a quantized tensor."""
    raise UnsupportedFakeTensorException(MESSAGES[0])


def is_about_quantized(error: Exception) -> bool:
    """Whether an operation failed because a tensor has a quantized dtype."""
    return any(text in str(error) for text in MESSAGES)
