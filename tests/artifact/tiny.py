"""The tiny model that the tests of artifacts compile and save."""

from __future__ import annotations

import torch


def build() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
