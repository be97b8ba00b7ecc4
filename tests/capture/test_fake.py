"""Modes for fake tensors."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from thunder_core.tracing.capture.fakes.fake import new_mode
from thunder_core.tracing.capture.symbolic.shape_env import NamedSource, TraceShapeEnv


def test_results_of_operations_on_symbolic_sizes_are_dropped_with_the_trace() -> None:
    environment, source = TraceShapeEnv(lambda: None), NamedSource("x.size(0)")
    size = environment.create_symintnode(environment.create_symbol(8, source), hint=8, source=source)
    with new_mode(environment):
        x = torch.empty(size)
        for _ in range(2):
            (x + x).repeat(2)
    assert environment.computed.results
    assert environment.computed.constants
    assert not environment.fake_tensor_cache  # the recording's own cache of calls finds the same operations
    environment.close()
    assert not environment.computed.results
    assert not environment.computed.constants


def test_operations_on_constant_sizes_are_cached() -> None:
    with new_mode() as mode:
        x = mode.from_tensor(torch.ones(7, 11, 13))
        x.cumprod(0)
        before = FakeTensorMode.cache_info().hits
        x.cumprod(0)
    assert FakeTensorMode.cache_info().hits == before + 1


def test_operations_within_an_operation_are_not_cached() -> None:
    with new_mode() as mode:
        x = mode.from_tensor(torch.ones(7, 11, 13))
        before = FakeTensorMode.cache_info().misses
        x.logit(0.1)
    assert FakeTensorMode.cache_info().misses == before + 1


def test_new_fakes_have_the_attributes_that_pytorch_sets() -> None:
    mode, device = new_mode(), torch.device("cpu")
    meta = torch.empty_strided((2, 3), (1, 2), device="meta")
    fakes = [mode.fake(meta, device) for _ in range(2)]
    by_pytorch = FakeTensor(mode, meta, device)
    for fake in fakes:
        assert vars(fake) == vars(by_pytorch)
        assert (fake.shape, fake.stride(), fake.device) == (by_pytorch.shape, by_pytorch.stride(), device)
