"""Modes on tensors without data."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from thunder_core.tracing.capture.fakes.fake import new_mode
from thunder_core.tracing.capture.symbolic.shape_env import NamedSource, TraceShapeEnv


def test_what_operations_gave_for_symbolic_sizes_is_not_remembered() -> None:
    environment, source = TraceShapeEnv(lambda: None), NamedSource("x.size(0)")
    size = environment.create_symintnode(environment.create_symbol(8, source), hint=8, source=source)
    with new_mode(environment):
        x = torch.empty(size)
        for _ in range(2):
            x + x
    assert not environment.fake_tensor_cache


def test_what_operations_gave_for_constant_sizes_is_remembered() -> None:
    with new_mode() as mode:
        x = mode.from_tensor(torch.ones(7, 11, 13))
        x + x
        before = FakeTensorMode.cache_info().hits
        x + x
    assert FakeTensorMode.cache_info().hits == before + 1
