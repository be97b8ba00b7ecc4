"""Cuts of autograd's graph in a computation that runs once more for a derivative."""

from __future__ import annotations

import torch


def replaced(computed: torch.Tensor, given: torch.Tensor | None) -> torch.Tensor:
    """A tensor that was given in place of one that was computed, so that its gradient ends there, if one was."""
    return computed if given is None else given
