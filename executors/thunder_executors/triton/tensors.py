"""Conditions on tensors of a trace: which of them our kernels can read."""

from __future__ import annotations

import torch

from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_executors.triton.launch import INTERPRETED
from thunder_executors.triton.rows import FLOATS


def is_here(tensor: object, *dtypes: torch.dtype) -> bool:
    """Whether it is a tensor of such a dtype that kernels can reach: on CUDA, or anywhere under the interpreter."""
    return isinstance(tensor, TensorProxy) and (INTERPRETED or tensor.device.type == "cuda") and tensor.dtype in dtypes


def takes(tensor: object) -> bool:
    """Whether our kernels compute with it."""
    return is_here(tensor, *FLOATS)
