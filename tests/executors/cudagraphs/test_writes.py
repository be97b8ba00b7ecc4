"""Writes within CUDA graphs, to computed memory, to arguments and to tensors of objects."""

from __future__ import annotations

import copy

import pytest
import torch

import thunder_core as thunder
from tests.executors.cudagraphs.stand_in import OnCpu, graphs_in
from thunder_core.tracing.library.examination import validating
from thunder_executors.cudagraphs import EXECUTOR, graph


def writes(x):
    y = x.exp() + 1
    y.mul_(2)
    z = x.sin() * 3
    return y + 1, z.cos(), torch.rand_like(z) * 0


def test_writes_to_computed_memory_are_captured_and_random_numbers_stay_outside_of_graphs(cuda):
    compiled = thunder.jit(writes, executors=(OnCpu(), "torch"))
    x = torch.randn(3)
    for _ in range(3):
        for actual, wanted in zip(compiled(x), writes(x), strict=True):
            torch.testing.assert_close(actual, wanted)
    inside = [part.symbol.short_name for line in graphs_in(compiled) for part in line.subsymbols]
    assert inside == ["exp", "add", "mul_", "sin", "mul", "add", "cos"]
    assert not any(line.symbol.target.held or line.mutates for line in graphs_in(compiled))
    assert cuda.replays == 2


def cache_made(x, counts):
    y = x * 2 + 1
    counts = [count.to(x.device) for count in counts]
    keys = torch.zeros(4, 3)
    places = torch.arange(1) + counts[0]
    keys.index_copy_(0, places, y)
    z = keys[:2] + x
    counts[0].add_(1)
    counts[1].add_(keys.sum().long())
    return keys, keys[1:], z * 2, counts


def test_a_cache_that_a_program_makes_is_written_within_a_graph(cuda):
    compiled = thunder.jit(cache_made, executors=(OnCpu(), "torch"))
    for number in range(4):
        x = torch.randn(1, 3)
        ours, theirs = ([torch.tensor(number % 4), torch.tensor(7)] for _ in range(2))
        found, expected = compiled(x, ours), cache_made(x, theirs)
        torch.testing.assert_close(found, expected)
        assert found[0].untyped_storage().data_ptr() == found[1].untyped_storage().data_ptr()
        torch.testing.assert_close(ours, theirs)
        found[0].zero_()
    inside = [part.symbol.short_name for line in graphs_in(compiled) for part in line.subsymbols]
    assert {"zeros", "index_copy_"} <= set(inside)
    assert "add_" not in inside
    assert cuda.replays >= 3


def written_later(x):
    y = x * 2 + 1
    z = torch.rand(3) * 0 + y
    y.mul_(2)
    return z.sin() + 1, y


def test_memory_that_an_earlier_graph_made_is_not_written_in_a_later_graph(cuda):
    compiled = thunder.jit(written_later, executors=(OnCpu(), "torch"))
    for _ in range(4):
        x = torch.randn(3)
        for actual, wanted in zip(compiled(x), written_later(x), strict=True):
            torch.testing.assert_close(actual, wanted)
    parts = [[part.symbol.short_name for part in line.subsymbols] for line in graphs_in(compiled)]
    assert "mul_" not in [name for names in parts for name in names]
    assert cuda.replays


class Held:
    """The keys of a cache and their number."""

    def __init__(self, room=4):
        self.keys = torch.zeros(room, 3)
        self.count = torch.tensor(0)


def grown(x, cache):
    y = x * 2 + 1
    place = torch.arange(1, device=x.device) + cache.count
    cache.count.add_(1)
    cache.keys.index_copy_(0, place, y)
    return cache.keys.sum(0) * y, cache.keys[1:]


def test_tensors_of_objects_are_written_in_place_by_a_single_graph(cuda):
    compiled = thunder.jit(grown, executors=(OnCpu(), "torch"))
    ours, theirs = Held(), Held()
    xs = [torch.randn(1, 3) for _ in range(4)]
    for x in (xs[0], *xs[:3]):
        for actual, wanted in zip(compiled(x, ours), grown(x, theirs), strict=True):
            torch.testing.assert_close(actual, wanted)
        assert torch.equal(ours.keys, theirs.keys)
        assert torch.equal(ours.count, theirs.count)
        assert (ours.keys._version, ours.count._version) == (theirs.keys._version, theirs.count._version)
    (line,) = graphs_in(compiled)
    assert [bsym.symbol.short_name for bsym in thunder.last_traces(compiled)[-1].bound_symbols if bsym.mutates] == [
        line.symbol.short_name
    ]
    (recording,) = line.symbol.target.recordings.values()
    inputs = [proxy.name for proxy in line.inputs]
    assert [inputs[number] for number in recording.buffers] == ["x"], "the cache is not copied"
    assert (cuda.records, cuda.replays) == (1, 3)


def test_each_cache_has_a_separate_graph_and_few_graphs_are_kept(cuda):
    compiled = thunder.jit(grown, executors=(OnCpu(), "torch"))
    x, caches = torch.randn(1, 3), [Held() for _ in range(graph.GRAPHS + 2)]
    for ours in (*caches, *caches[:2]):
        ours.count.zero_()
        theirs = copy.deepcopy(ours)
        for _ in range(3):
            torch.testing.assert_close(compiled(x, ours), grown(x, theirs))
        assert torch.equal(ours.keys, theirs.keys)
    (line,) = graphs_in(compiled)
    assert thunder.cache_misses(compiled) == 1
    assert len(line.symbol.target.recordings) == len(line.symbol.target.seen) == graph.GRAPHS
    assert cuda.records == len(caches) + 2


def test_arguments_that_are_written_to_stay_out_of_graphs(cuda):
    def function(x, places):
        y = x * 2 + 1
        places[0].add_(y)
        return y.sin() * 2, places[0] + 1

    compiled = thunder.jit(function, executors=(OnCpu(), "torch"))
    for _ in range(3):
        x, ours = torch.randn(3), torch.zeros(3)
        theirs = ours.clone()
        torch.testing.assert_close(compiled(x, [ours]), function(x, [theirs]))
        assert torch.equal(ours, theirs)
    inside = [part.symbol.short_name for line in graphs_in(compiled) for part in line.subsymbols]
    assert not {"add_"} & set(inside)
    assert "sin" in inside


def test_written_memory_that_autograd_follows_stays_out_of_graphs(cuda):
    model = torch.nn.BatchNorm1d(3)
    compiled = thunder.jit(model, executors=(OnCpu(), "torch"))
    expected, x = copy.deepcopy(model), torch.randn(4, 3)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), expected(x))
        torch.testing.assert_close(model.running_mean, expected.running_mean)
        assert torch.equal(model.num_batches_tracked, expected.num_batches_tracked)


@pytest.mark.gpu
def test_on_a_gpu_tensors_of_objects_are_written_in_place():
    compiled = thunder.jit(grown, executors=(EXECUTOR, "torch"))
    ours, theirs = Held(), Held()
    for held in (ours, theirs):
        held.keys, held.count = held.keys.cuda(), held.count.cuda()
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(1, 3, device="cuda")
            torch.testing.assert_close(compiled(x, ours), grown(x, theirs))
            assert torch.equal(ours.keys, theirs.keys)
            assert torch.equal(ours.count, theirs.count)
    assert any(line.symbol.target.recordings for line in graphs_in(compiled))


def test_a_validated_first_call_writes_once(cuda):
    def counted(x, count):
        count.add_(x.sum())
        return (x * count).sin() + 1

    compiled = thunder.jit(counted, executors=(OnCpu(), "torch"))
    x, ours, theirs = torch.ones(2), torch.zeros(()), torch.zeros(())
    with validating():
        found = compiled(x, ours)
    torch.testing.assert_close(found, counted(x, theirs))
    torch.testing.assert_close(ours, theirs)
    assert (cuda.records, cuda.replays, ours._version) == (1, 1, 1)
