"""Memory computed from a trace: allocated, shared, freed, and temporary within a line."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

import thunder_core as thunder
from thunder_core.compilation.memory.use import memory_use
from thunder_core.tracing.analysis.storages import round_to_block
from thunder_core.workflow.benchmark.allocations import peak_allocated

KIB = 1024


def last_trace(function, *inputs, executors=("torch",)):
    compiled = thunder.jit(function, executors=executors)
    with torch.no_grad():
        compiled(*inputs)
    return thunder.last_traces(compiled)[-1]


def held_bytes(function, *inputs):
    use = memory_use(last_trace(function, *inputs))
    return [line.held - use.outside for line in use.lines]


def test_results_hold_memory_until_they_are_deleted():
    chain = held_bytes(lambda x: torch.tanh(torch.exp(torch.sin(x))), torch.zeros(256))
    assert chain == [KIB, 2 * KIB, KIB, 2 * KIB, KIB]


def test_views_hold_the_memory_of_their_base():
    assert held_bytes(lambda x: torch.sin(x).view(16, 16).t(), torch.zeros(256)) == [KIB] * 5


def test_a_part_holds_the_whole():
    assert held_bytes(lambda x: torch.sin(x)[:1], torch.zeros(256))[-1] == KIB


def test_views_of_inputs_hold_nothing():
    assert max(held_bytes(lambda x: x.view(16, 16).t(), torch.zeros(256))) == 0


def test_writing_in_place_holds_nothing_more():
    assert max(held_bytes(lambda x: torch.sin(x).mul_(2).add_(1), torch.zeros(256))) == KIB


def test_inputs_and_constants_are_outside():
    weight = torch.ones(256)
    assert memory_use(last_trace(lambda x: x + weight, torch.zeros(256))).outside == 2 * KIB


def test_a_trace_that_deletes_nothing_keeps_everything():
    compiled = thunder.jit(lambda x: torch.tanh(torch.exp(torch.sin(x))))
    compiled(torch.zeros(256))
    first, *_, last = (memory_use(trace).own for trace in thunder.last_traces(compiled))
    assert (first, last) == (3 * KIB, 2 * KIB)


def both_halves(x):
    return torch.cat([x.sin() * 2, x.cos() * 3]).sum()


PROGRAMS = {
    "a line with parts": lambda x: functional.layer_norm(functional.softmax(x, -1, dtype=torch.float64), (64,)),
    "a loss": lambda x: functional.cross_entropy(x, x.argmax(-1)),
    "views": lambda x: x.sin().t().contiguous().view(-1)[::2].exp(),
    "in place": lambda x: x.sin().mul_(2).t().add_(1).exp(),
    "both halves": both_halves,
    "matrix products": lambda x: (x @ x.t()).relu() @ x + x,
    "attention": lambda x: functional.scaled_dot_product_attention(*[x.sin().view(1, 2, 16, 64) for _ in "qkv"]),
}


@pytest.mark.parametrize("executors", [("torch",), ("inductor", "torch")], ids="+".join)
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_peak_equals_that_of_the_allocator(name, executors):
    x = torch.randn(32, 64)
    compiled = thunder.jit(PROGRAMS[name], executors=executors)
    with torch.no_grad():
        compiled(x)
        measured = peak_allocated(lambda: compiled(x))
    assert memory_use(thunder.last_traces(compiled)[-1]).own == pytest.approx(measured, rel=0.1)


def test_a_gpu_gives_memory_in_blocks():
    assert round_to_block(1, torch.device("cuda")) == 512
    assert round_to_block(1, torch.device("cpu")) == 1
