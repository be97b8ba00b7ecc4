"""The dtypes that a model can be loaded in, and their names."""

from __future__ import annotations

import torch

from thunder_core.workflow.models.request.names import spelled_dtype


def parse_dtype(name: str) -> torch.dtype:
    """The dtype of that name or alias, with or without `torch.`; raises `UnknownName`."""
    dtype: torch.dtype = getattr(torch, spelled_dtype(name))
    return dtype


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype as options and manifests spell it: `bfloat16`."""
    return str(dtype).removeprefix("torch.")
