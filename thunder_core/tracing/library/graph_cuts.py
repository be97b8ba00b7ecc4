"""Cuts of autograd's graph in a computation that is run again for a derivative."""

from __future__ import annotations

import torch


def replaced(computed: torch.Tensor, given: torch.Tensor | None) -> torch.Tensor:
    """Return `given` instead of the computed tensor, so that its gradient ends there; `computed` if it is None."""
    return computed if given is None else given
