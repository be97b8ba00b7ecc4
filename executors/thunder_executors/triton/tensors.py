"""Conditions on tensors of a trace: the tensors that Thunder's kernels can read."""

from __future__ import annotations

import torch

from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_executors.triton.launch import INTERPRETED
from thunder_executors.triton.rows import FLOATS


def is_cuda_tensor(tensor: object, *dtypes: torch.dtype) -> bool:
    """Whether an object is a tensor of one of these dtypes on CUDA, or on any device under the interpreter."""
    return isinstance(tensor, TensorProxy) and (INTERPRETED or tensor.device.type == "cuda") and tensor.dtype in dtypes


def is_supported(tensor: object) -> bool:
    """Whether Thunder's kernels support an object: a tensor of a supported floating-point dtype."""
    return is_cuda_tensor(tensor, *FLOATS)
