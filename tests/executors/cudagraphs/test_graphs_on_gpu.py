"""CUDA graphs on a GPU under stress: streams, lifetimes, new inputs, unusual layouts, writes, and backward."""

from __future__ import annotations

import gc
import warnings

import pytest
import torch
from torch import nn

import thunder_core as thunder
from tests.executors.cudagraphs.test_cudagraphs import Model, graphs_in
from thunder_core.workflow.benchmark.timing import peak_memory_of
from thunder_executors.cudagraphs import EXECUTOR

pytestmark = pytest.mark.gpu
EXECUTORS = (EXECUTOR, "torch")


class Deep(nn.Module):
    """Products and activations that are large enough for work on two streams to overlap."""

    def __init__(self, width: int = 512, seed: int = 0):
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(6))

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.tanh(layer(x)) * 0.5
        return x


Deep.__module__ = "tests.executors.cudagraphs.test_graphs_on_gpu"


def test_a_second_model_is_recorded_after_the_first_one_has_died():
    for seed in range(3):
        model = Deep(seed=seed).cuda()
        compiled = thunder.jit(model, executors=EXECUTORS)
        with torch.no_grad():
            for _ in range(4):
                x = torch.randn(64, 512, device="cuda")
                torch.testing.assert_close(compiled(x), model(x))
        del compiled, model
        gc.collect()
        torch.cuda.empty_cache()


def test_two_streams_that_replay_at_once_give_the_results_of_one_stream():
    model = Deep().cuda()
    compiled = thunder.jit(model, executors=EXECUTORS)
    xs = [torch.randn(256, 512, device="cuda") for _ in range(8)]
    streams = [torch.cuda.Stream() for _ in range(2)]
    with torch.no_grad():
        expected = [compiled(x) for x in (*xs, *xs)][8:]
        torch.cuda.synchronize()
        for stream in streams:
            with torch.cuda.stream(stream):
                compiled(xs[0]), compiled(xs[0])
        torch.cuda.synchronize()
        for _ in range(25):
            found = []
            for number, x in enumerate(xs):
                with torch.cuda.stream(streams[number % 2]):
                    found.append(compiled(x))
            torch.cuda.synchronize()
            assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


def test_fresh_inputs_are_served_by_one_recording():
    model = Deep().cuda()
    compiled = thunder.jit(model, executors=EXECUTORS)
    kept = []
    with torch.no_grad():
        for _ in range(50):
            x = torch.randn(8, 512, device="cuda")
            kept.append(x)
            torch.testing.assert_close(compiled(x), model(x))
    (line,) = graphs_in(compiled)
    assert len(line.symbol.target.recordings) == 1
    assert not line.symbol.target.failed


def test_expanded_overlapping_and_misaligned_inputs():
    compiled = thunder.jit(lambda x, y: (x * y + 1).tanh() * 2, executors=EXECUTORS)
    for _ in range(5):
        row, memory = torch.randn(1, 4, device="cuda"), torch.randn(9, device="cuda")[1:]
        x, y = row.expand(3, 4), memory.as_strided((3, 4), (2, 1))
        torch.testing.assert_close(compiled(x, y), (x * y + 1).tanh() * 2)
    assert graphs_in(compiled)[0].symbol.target.recordings


def test_views_alone_and_an_empty_result_need_no_graph():
    compiled = thunder.jit(lambda x: (x.t()[1:], x[:0] * 2 + 1), executors=EXECUTORS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(4):
            x = torch.randn(3, 4, device="cuda")
            for found, expected in zip(compiled(x), (x.t()[1:], x[:0] * 2 + 1), strict=True):
                assert torch.equal(found, expected)


def test_a_write_by_a_mask_stays_outside_and_is_right():
    def function(x):
        y = x * 2 + 1
        y[x > 0] = 0.5
        return y.exp() + 1

    compiled = thunder.jit(function, executors=EXECUTORS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(4):
            x = torch.randn(100, device="cuda")
            torch.testing.assert_close(compiled(x), function(x))


def test_a_backward_in_autograds_own_thread_is_replayed():
    model = Deep().cuda()
    compiled = thunder.jit(model, executors=EXECUTORS)
    for _ in range(5):
        x = torch.randn(16, 512, device="cuda", requires_grad=True)
        model.zero_grad()
        compiled(x).square().sum().backward()
        found = [x.grad.clone(), *(weight.grad.clone() for weight in model.parameters())]
        model.zero_grad()
        x.grad = None
        model(x).square().sum().backward()
        torch.testing.assert_close(found, [x.grad, *(weight.grad for weight in model.parameters())])
    backward = [
        line for line in thunder.last_backward_traces(compiled)[-1].bound_symbols if line.executor == "cudagraphs"
    ]
    assert backward
    assert all(line.symbol.target.recordings and not line.symbol.target.failed for line in backward)


def test_a_model_on_a_second_gpu_is_recorded_there():
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    model = Model().to("cuda:1")
    compiled = thunder.jit(model, executors=EXECUTORS)
    with torch.no_grad():
        for _ in range(5):
            x = torch.randn(2, 4, device="cuda:1")
            torch.testing.assert_close(compiled(x), model(x))


def test_dropout_draws_the_numbers_of_eager_and_differentiates_twice():
    def function(x):
        y = nn.functional.dropout(x * 2 + 1, 0.5).tanh()
        return torch.autograd.grad(y.square().sum(), x, create_graph=True)[0].sin().sum()

    compiled = thunder.jit(function, executors=EXECUTORS)
    for seed in range(4):
        results = []
        for function_ in (compiled, function):
            torch.manual_seed(seed)
            x = torch.linspace(-1, 1, 64, device="cuda").requires_grad_()
            function_(x).backward()
            results.append(x.grad)
        torch.testing.assert_close(*results)


def test_a_recording_frees_what_it_does_not_return():
    model = Deep(width=1024).cuda()
    compiled = thunder.jit(model, executors=EXECUTORS)
    with torch.no_grad():
        x = torch.randn(512, 1024, device="cuda")
        compiled(x)
        before = torch.cuda.memory_allocated()
        for _ in range(10):
            compiled(x)
        torch.cuda.synchronize()
        assert torch.cuda.memory_allocated() - before < 8 * x.nbytes


def test_peak_memory_of_a_replay_contains_the_temporaries_of_the_graph():
    model = Deep(width=1024).cuda()
    compiled = thunder.jit(model, executors=EXECUTORS)
    x = torch.randn(1024, 1024, device="cuda")
    with torch.no_grad():
        model(x)  # allocates the workspace of cuBLAS
        for _ in range(3):
            compiled(x)
        eager = peak_memory_of(lambda: model(x), x.device)
        assert peak_memory_of(lambda: compiled(x), x.device) >= 2 * x.nbytes
    assert eager < 8 * x.nbytes  # without the pool of the graph
