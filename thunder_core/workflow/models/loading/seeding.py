"""Random numbers that are the same every time and disturb nobody else's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Run with PyTorch's CPU generator at a seed, and put its state back afterwards; GPU generators are untouched."""
    before = torch.get_rng_state()
    try:
        torch.default_generator.manual_seed(seed)
        yield
    finally:
        torch.set_rng_state(before)
