"""CUDA graphs in training: what a forward saves is not copied, and each order of calls has the gradients of eager.

On the CPU, a stand-in replaces the recording: a replay overwrites the memory of the graph's results.
"""

from __future__ import annotations

import copy
import gc
import random

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import thunder_core as thunder
from tests.executors.cudagraphs.stand_in import OnCpu, graphs_in
from thunder_executors.cudagraphs import EXECUTOR, graph, loans

WIDTH = 6


class Deep(nn.Module):
    """Layers that save activations."""

    def __init__(self, layers=3):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.tanh(layer(x)) * torch.sigmoid(x)
        return x.square().sum(-1)


Deep.__module__ = "tests.executors.cudagraphs.test_loans"


class Pair:
    """A model compiled and in eager, with the same parameters; gradients are compared."""

    def __init__(self, model=None, executor=None):
        self.eager = model or Deep()
        self.ours = copy.deepcopy(self.eager)
        self.compiled = thunder.jit(self.ours, executors=(executor or OnCpu(), "torch"))
        self.device = next(self.eager.parameters()).device

    def call(self, x):
        return self.compiled(x), self.eager(x)

    def backward(self, results, **options):
        for result in results:
            result.sum().backward(**options)
        self.compare()

    def compare(self):
        ours, theirs = ([weight.grad for weight in model.parameters()] for model in (self.ours, self.eager))
        torch.testing.assert_close(ours, theirs)

    def step(self, count=1):
        for _ in range(count):
            self.zero_grad()
            self.backward(self.call(torch.randn(4, WIDTH, device=self.device)))

    def zero_grad(self):
        self.ours.zero_grad()
        self.eager.zero_grad()

    @property
    def forward_graphs(self):
        return [line.symbol.target for line in graphs_in(self.compiled)]

    @property
    def backward_graphs(self):
        lines = thunder.last_backward_traces(self.compiled)[-1].bound_symbols
        return [line.symbol.target for line in lines if line.executor == "cudagraphs"]


@pytest.fixture
def pair(cuda):
    torch.manual_seed(0)
    found = Pair()
    found.step(4)
    assert cuda.records == 2
    return found


def recording_of(function):
    (recording,) = function.recordings.values()
    return recording


def test_saved_tensors_are_not_copied(pair, cuda):
    """The forward's graph copies its result, and the backward's graph copies in the gradient of the result."""
    (forward,), (backward,) = pair.forward_graphs, pair.backward_graphs
    before = cuda.replays
    pair.step(3)
    assert cuda.replays == before + 6
    made, read = recording_of(forward), recording_of(backward)
    assert made.copied_nbytes == 4 * 4
    assert sum(made.memories[number].nbytes for number in made.loans) > 3 * 4 * WIDTH * 4
    assert sum(buffer.memory.nbytes for buffer in read.buffers.values()) <= 4 * 4 + 4 * WIDTH * 4
    assert backward.saved
    assert cuda.own_pools == 1, "only the memory of the forward's graph is read after other replays"


def test_second_forward_before_the_backward_runs_without_a_graph(pair, cuda):
    before = cuda.replays
    pair.zero_grad()
    first, second = (pair.call(torch.randn(4, WIDTH)) for _ in range(2))
    assert cuda.replays == before + 1
    pair.backward(second)
    pair.backward(first)
    assert cuda.replays == before + 2
    pair.step()
    assert cuda.replays == before + 4


def test_accumulated_gradients_of_several_batches_are_replayed(pair, cuda):
    before = cuda.replays
    pair.zero_grad()
    for _ in range(4):
        pair.backward(pair.call(torch.randn(4, WIDTH)))
    assert cuda.replays == before + 8


def test_one_backward_of_two_forwards(pair):
    pair.zero_grad()
    calls = [pair.call(torch.randn(4, WIDTH)) for _ in range(3)]
    pair.backward([sum(result.sum() for result in results) for results in zip(*calls, strict=True)])


def test_retained_tensors_outlive_later_forwards(pair, cuda):
    pair.zero_grad()
    first = pair.call(torch.randn(4, WIDTH))
    pair.backward(first, retain_graph=True)
    before = cuda.replays
    pair.call(torch.randn(4, WIDTH))
    assert cuda.replays == before, "the graph of the first call is retained"
    pair.backward(first, retain_graph=True)
    pair.backward(pair.call(torch.randn(4, WIDTH)))
    pair.backward(first)
    pair.step()
    assert cuda.replays > before + 2


def test_forward_without_a_backward_keeps_its_tensors_until_it_dies(pair, cuda):
    kept = pair.call(torch.randn(4, WIDTH))
    before = cuda.replays
    pair.step()
    assert cuda.replays == before
    pair.zero_grad()
    pair.backward(kept)
    del kept
    pair.step()
    assert cuda.replays > before


def test_saved_tensors_that_the_user_reads_keep_their_values(pair):
    result, _ = pair.call(torch.randn(4, WIDTH))
    saved = result.grad_fn.saved_tensors
    lent = [tensor for tensor in saved if loans.is_lent(tensor)]
    values = [tensor.clone() for tensor in lent]
    assert lent
    del result
    pair.step(3)
    assert all(torch.equal(*both) for both in zip(lent, values, strict=True))


def test_an_error_between_forward_and_backward(pair):
    def fails():
        results = pair.call(torch.randn(4, WIDTH))
        raise ZeroDivisionError(results)

    for _ in range(3):
        pair.zero_grad()
        with pytest.raises(ZeroDivisionError) as caught:
            fails()
        pair.backward(pair.call(torch.randn(4, WIDTH)))
        first = pair.call(torch.randn(4, WIDTH))
        with pytest.raises(RuntimeError, match="shape"):
            first[0].backward(torch.ones(5))
        pair.backward(first)
        pair.backward(caught.value.args[0])


def test_second_derivatives(pair):
    for _ in range(3):
        found = []
        x = torch.randn(4, WIDTH)
        for call in (pair.compiled, pair.eager):
            leaf = x.clone().requires_grad_()
            (gradient,) = torch.autograd.grad(call(leaf).sum(), leaf, create_graph=True)
            found.append((gradient, *torch.autograd.grad(gradient.square().sum(), leaf)))
        torch.testing.assert_close(*found)
        pair.step()


def test_hooks_of_saved_tensors_get_copies(pair, cuda):
    """A hook may read a tensor on another stream, which does not wait for the next replay."""
    before = cuda.replays
    with torch.autograd.graph.save_on_cpu():
        first = pair.call(torch.randn(4, WIDTH))
    assert cuda.replays == before + 1
    assert not any(recording_of(function).is_in_use for function in pair.forward_graphs)
    pair.step(2)
    pair.zero_grad()
    pair.backward(first)
    packed = []

    def pack(tensor):
        packed.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        second = pair.call(torch.randn(4, WIDTH))
    values = [tensor.clone() for tensor in packed]
    pair.step(2)
    assert all(torch.equal(*both) for both in zip(packed, values, strict=True))
    pair.zero_grad()
    pair.backward(second)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_calls(pair, reentrant):
    for _ in range(3):
        pair.zero_grad()
        x = torch.randn(4, WIDTH)
        for call in (pair.compiled, pair.eager):
            leaf = x.clone().requires_grad_()
            hidden = checkpoint(call, leaf, use_reentrant=reentrant)
            (hidden.sum() * call(leaf).sum()).backward()
        pair.compare()
        pair.step()


def test_a_dropped_graph_leaves_its_lent_memory_alive(pair, cuda):
    pair.zero_grad()
    first = pair.call(torch.randn(4, WIDTH))
    for function in pair.forward_graphs:
        function.recordings.clear()
    gc.collect()
    garbage = [torch.full((4, WIDTH), 7.0) for _ in range(100)]
    pair.step(2)
    pair.zero_grad()
    pair.backward(first)
    del garbage
    records = cuda.records
    pair.step(3)
    assert cuda.records == records, "captured again by the steps above"


def test_a_parameter_that_moves_between_forward_and_backward(pair):
    for _ in range(3):
        pair.zero_grad()
        first = pair.call(torch.randn(4, WIDTH))
        new = torch.randn(WIDTH)
        for model in (pair.ours, pair.eager):
            model.layers[0].bias.data = new.clone()
        second = pair.call(torch.randn(4, WIDTH))
        pair.backward(second)
        pair.backward(first)
        pair.step()


def test_each_size_has_memory_of_its_own(cuda):
    pair = Pair()
    for _ in range(4):
        pair.zero_grad()
        calls = [pair.call(torch.randn(rows, WIDTH)) for rows in (2, 5, 3)]
        for results in reversed(calls):
            pair.backward(results)
    assert cuda.replays


class Dropped(nn.Module):
    """Random numbers are drawn outside of graphs, and their results are saved, too."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        x = torch.tanh(self.first(x)) * torch.sigmoid(x)
        return torch.sin(self.second(nn.functional.dropout(x, 0.5))).exp()


Dropped.__module__ = "tests.executors.cudagraphs.test_loans"


def test_a_later_graph_of_the_same_forward_reads_lent_memory_in_place(cuda):
    pair = Pair(Dropped())
    for seed in range(6):
        pair.zero_grad()
        x, results = torch.randn(4, WIDTH), []
        for call in (pair.compiled, pair.eager):
            torch.manual_seed(seed)
            results.append(call(x))
        torch.testing.assert_close(*results)
        pair.backward(results)
    assert len(pair.forward_graphs) == 2
    assert cuda.replays > 8


def test_tensors_that_are_saved_and_returned_are_copied(cuda):
    def function(x, weight):
        y = torch.tanh(x * weight) * weight
        z = torch.exp(y) * y
        return y.view(-1), z.sum()

    compiled = thunder.jit(function, executors=(OnCpu(), "torch"))
    kept, results = [], []
    for _ in range(6):
        x, weight = torch.randn(3), torch.randn(3, requires_grad=True)
        results += [compiled(x, weight), function(x, weight)]
        kept.append(results[-2][0].detach().clone())
        found = [torch.autograd.grad(sum(map(torch.sum, pair)), weight)[0] for pair in results[-2:]]
        torch.testing.assert_close(*found)
    assert all(torch.equal(result[0], value) for result, value in zip(results[::2], kept, strict=True))
    assert cuda.replays


@pytest.mark.parametrize("seed", range(12))
def test_random_orders_of_forwards_and_backwards(seed, cuda, monkeypatch):
    monkeypatch.setattr(graph, "GRAPHS", 3)
    torch.manual_seed(seed)
    choose = random.Random(seed)
    pair, pending = Pair(Deep(2)), []
    for _ in range(60):
        action = choose.choice(("forward", "forward", "backward", "backward", "retain", "drop", "zero", "move"))
        if action == "forward":
            pending.append(pair.call(torch.randn(choose.choice((2, 4)), WIDTH)))
        elif action in ("backward", "drop") and pending:
            results = pending.pop(choose.randrange(len(pending)))
            if action == "backward":
                pair.backward(results)
        elif action == "retain" and pending:
            pair.backward(choose.choice(pending), retain_graph=True)
        elif action == "zero":
            pair.zero_grad()
        elif action == "move" and choose.random() < 0.3:
            pending.clear()
            for model in (pair.ours, pair.eager):
                model.layers[1].bias.data = torch.full((WIDTH,), 0.25)
    assert cuda.replays


def test_graphs_of_a_loaded_training_step_lend_their_memory(pair, cuda, tmp_path):
    thunder.save(pair.compiled, tmp_path / "artifact")
    pair.compiled = thunder.load(tmp_path / "artifact", pair.ours, strict=True)
    before, pools = cuda.replays, cuda.own_pools
    pair.step(5)
    assert cuda.replays == before + 8
    assert cuda.own_pools == pools + 1
    first, second = (pair.call(torch.randn(4, WIDTH)) for _ in range(2))
    pair.zero_grad()
    pair.backward(second)
    pair.backward(first)


def test_saved_tensors_that_keep_the_gpu_busy_are_not_kept_in_a_graph(cuda):
    """Writing 64 MiB takes longer than launching the kernels, so a graph would save no time."""

    def function(x):
        return (torch.tanh(x) * torch.sigmoid(x)).sum()

    compiled = thunder.jit(function, executors=(OnCpu(), "torch"))
    x = torch.randn(1 << 23, requires_grad=True)
    compiled(x).backward()
    assert graphs_in(compiled) == []


@pytest.mark.gpu
def test_on_a_gpu_each_order_of_forwards_and_backwards_has_the_gradients_of_eager():
    torch.manual_seed(0)
    pair = Pair(Deep().cuda(), EXECUTOR)
    pair.step(5)
    (forward,), (backward,) = pair.forward_graphs, pair.backward_graphs
    assert recording_of(forward).replays == 4
    assert recording_of(backward).replays == 4
    for _ in range(5):
        pair.zero_grad()
        first, second = (pair.call(torch.randn(4, WIDTH, device="cuda")) for _ in range(2))
        pair.backward(first, retain_graph=True)
        pair.backward(second)
        pair.backward(first)
        del first, second
        pair.step()


@pytest.mark.gpu
def test_on_a_gpu_replays_of_other_graphs_leave_lent_memory_unchanged():
    """Another model is captured first, so that its temporaries are where a shared pool would place lent memory."""
    other = thunder.jit(Deep(8).cuda(), executors=(EXECUTOR, "torch"))
    x = torch.randn(4, WIDTH, device="cuda")
    with torch.no_grad():
        for _ in range(3):
            other(x)
    pair = Pair(Deep().cuda(), EXECUTOR)
    pair.step(4)
    for _ in range(5):
        pair.zero_grad()
        results = pair.call(torch.randn(4, WIDTH, device="cuda"))
        with torch.no_grad():
            other(x)
        pair.backward(results)
