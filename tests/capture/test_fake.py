"""Modes for fake tensors."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from thunder_core.tracing.capture.fakes.fake import new_mode
from thunder_core.tracing.capture.symbolic.shape_env import NamedSource, TraceShapeEnv


def test_operations_on_symbolic_sizes_are_not_cached() -> None:
    environment, source = TraceShapeEnv(lambda: None), NamedSource("x.size(0)")
    size = environment.create_symintnode(environment.create_symbol(8, source), hint=8, source=source)
    with new_mode(environment):
        x = torch.empty(size)
        for _ in range(2):
            x + x
    assert not environment.fake_tensor_cache


def test_operations_on_constant_sizes_are_cached() -> None:
    with new_mode() as mode:
        x = mode.from_tensor(torch.ones(7, 11, 13))
        x + x
        before = FakeTensorMode.cache_info().hits
        x + x
    assert FakeTensorMode.cache_info().hits == before + 1
