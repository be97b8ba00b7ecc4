"""Writes to tensors in compiled regions with symbolic sizes: one region for all sizes, with eager's results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import thunder_core as thunder
from thunder_core.backend.fusion.updates import is_plain
from thunder_core.tracing.ir.proxy import TensorProxy, environment_of


def in_place(x: Tensor, y: Tensor) -> Tensor:
    z = x * y
    x.add_(y.sin()).mul_(2)
    return (z + x).relu() * 3


def written_over(x: Tensor, y: Tensor) -> Tensor:
    y.copy_(x.sin() + 1)
    torch.mul(x, x, out=y)
    return y.cos() * y


def optimizer_step(x: Tensor, y: Tensor) -> None:
    """Update two parameters; the updates of each parameter are grouped."""
    torch._foreach_mul_([x, y], 0.5)
    torch._foreach_add_([x, y], [x.sin(), y.sin()])


PROGRAMS: tuple[Callable[..., Any], ...] = (in_place, written_over, optimizer_step)


def regions(compiled: Any) -> list[Any]:
    return [bsym for bsym in thunder.last_traces(compiled)[-1].bound_symbols if bsym.executor == "inductor"]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_all_sizes_share_one_region_that_writes(program: Callable[..., Any]) -> None:
    compiled = thunder.jit(program, executors=["inductor"], cache="symbolic values")
    for rows, columns in ((3, 4), (5, 8), (1, 1)):
        ours = torch.randn(rows, columns), torch.randn(rows, columns)
        theirs = tuple(tensor.clone() for tensor in ours)
        torch.testing.assert_close(compiled(*ours), program(*theirs))
        torch.testing.assert_close(ours, theirs)
        assert [tensor._version for tensor in ours] == [tensor._version for tensor in theirs]
    assert thunder.cache_misses(compiled) == 1
    assert not thunder.last_program(compiled).constant_because
    assert regions(compiled)
    assert not [bsym for bsym in thunder.last_traces(compiled)[-1].bound_symbols if bsym.executor == "torch"]


def test_overlapping_elements_are_detected_for_all_sizes() -> None:
    """Regions do not write to expanded rows and sliding windows; the check adds no guard."""
    compiled = thunder.jit(lambda x: (x.T, x[:, :1].expand(-1, 3), x.unfold(1, 3, 1)), cache="symbolic values")
    compiled(torch.randn(6, 8))
    trace = thunder.last_traces(compiled)[0]
    proxies = [proxy for proxy in (*trace.inputs, *trace.outputs) if isinstance(proxy, TensorProxy)]
    guards = environment_of(proxies).guards
    before = len(guards)
    assert [is_plain(proxy) for proxy in proxies] == [True, True, False, False]
    assert len(guards) == before


def test_writes_to_overlapping_tensors_match_eager() -> None:
    compiled = thunder.jit(in_place, executors=["inductor"], cache="symbolic values")
    for rows, shift in ((4, 4), (4, 2), (6, 0), (5, 5), (6, 1)):
        ours, theirs = (torch.arange(60.0).reshape(20, 3) for _ in range(2))
        expected = in_place(theirs[:rows], theirs[shift : shift + rows])
        torch.testing.assert_close(compiled(ours[:rows], ours[shift : shift + rows]), expected)
        torch.testing.assert_close(ours, theirs)
