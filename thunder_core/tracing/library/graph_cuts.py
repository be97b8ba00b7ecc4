"""Cuts of autograd's graph in a computation that is run again for a derivative."""

from __future__ import annotations

import torch


def replaced(computed: torch.Tensor, replacement: torch.Tensor | None) -> torch.Tensor:
    """Return the replacement of a computed tensor, at which its gradient ends; without one, the computed tensor."""
    return computed if replacement is None else replacement
