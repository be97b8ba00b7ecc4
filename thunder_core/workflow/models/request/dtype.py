"""The dtypes that a model can be loaded in, and their names."""

from __future__ import annotations

import torch

from thunder_core.workflow.models.request.names import spelled_dtype


def parse_dtype(name: str) -> torch.dtype:
    """Return the dtype with a name or alias, with or without `torch.`; raise `UnknownName` for any other name."""
    dtype: torch.dtype = getattr(torch, spelled_dtype(name))
    return dtype
