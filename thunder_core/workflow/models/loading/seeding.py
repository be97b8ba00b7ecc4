"""Reproducible random numbers that do not change the caller's random state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seed_generator(seed: int) -> Iterator[None]:
    """Seed PyTorch's CPU generator during the block, and restore its state afterwards; GPU generators do not change."""
    before = torch.get_rng_state()
    try:
        torch.default_generator.manual_seed(seed)
        yield
    finally:
        torch.set_rng_state(before)
