"""Fake tensors with concrete sizes, in place of fakes with symbolic sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._mode_utils import no_dispatch

from thunder_core.tracing.capture.torch_facts.layouts import is_symbolic


def example_of(leaf: object, mode: FakeTensorMode, value_of: Callable[[Any], int]) -> Any:
    """Return a value with numbers in place of symbolic ones: a fake with concrete sizes, or the number."""
    if isinstance(leaf, torch.SymInt):
        return value_of(leaf)
    if not isinstance(leaf, FakeTensor) or not is_symbolic(leaf):
        return leaf
    with no_dispatch():
        shape, strides = (list(map(value_of, sizes)) for sizes in (leaf.shape, leaf.stride()))
        return FakeTensor(mode, torch.empty_strided(shape, strides, dtype=leaf.dtype, device="meta"), leaf.device)
