"""Cut autograd's graph in a computation that runs again to compute a derivative."""

from __future__ import annotations

import torch


def replaced(computed: torch.Tensor, replacement: torch.Tensor | None) -> torch.Tensor:
    """Return the replacement of a computed tensor, if there is one, so that gradients end at the replacement."""
    return computed if replacement is None else replacement
