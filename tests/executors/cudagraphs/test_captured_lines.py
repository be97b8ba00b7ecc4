"""Which lines of a program a CUDA graph captures."""

from __future__ import annotations

import pytest
import torch
from transformers import StaticCache

import thunder_core as thunder
from tests.executors.cudagraphs.stand_in import OnCpu, graphs_in
from tests.generation.models import model_of, prompt_of
from thunder_core.compilation.compiler import specializations_of, trace_for
from thunder_core.compilation.compiler.for_device import compile_for
from thunder_core.foundation.transformers_versions import cache_argument
from thunder_core.tracing.ir.symbol import BoundSymbol, Symbol
from thunder_executors.cudagraphs import EXECUTOR, CudaGraphs, cannot_be_recorded


def test_views_alone_are_no_graph(cuda):
    compiled = thunder.jit(lambda x: (x.t()[1:], x.view(-1).unsqueeze(0)), executors=(OnCpu(), "torch"))
    compiled(torch.randn(2, 4))
    assert graphs_in(compiled) == []


def test_region_with_copies_costlier_than_launches_is_no_graph(cuda):
    compiled = thunder.jit(lambda x: x.exp() + 1, executors=(OnCpu(), "torch"))
    compiled(torch.randn(2, 1 << 22))
    assert graphs_in(compiled) == []


def test_lines_on_the_cpu_are_not_wrapped():
    compiled = thunder.jit(lambda x: x.exp() + 1, executors=(EXECUTOR, "torch"))
    compiled(torch.randn(3))
    assert graphs_in(compiled) == []


def test_a_program_for_an_absent_gpu_is_wrapped_except_copies_to_the_cpu():
    def function(x):
        y = (x.exp() + 1).sin()
        return (y * 2).cos(), x.cpu() + 1

    program, _ = trace_for(
        thunder.jit(function, executors=(EXECUTOR, "torch")), torch.device("cuda"), (torch.ones(3),), {}
    )
    wrapped = [line for line in program.last("computation").bound_symbols if line.executor == "cudagraphs"]
    (line,) = wrapped
    assert [part.symbol.short_name for part in line.subsymbols] == ["exp", "add", "sin", "mul", "cos"]
    assert EXECUTOR.missing_for("sm_90") is None


class Counting(torch.nn.Module):
    """Uses a tensor on the CPU late."""

    def __init__(self, size):
        super().__init__()
        self.count = torch.ones(size)

    def forward(self, x):
        y = (x.exp() + 1).sin()
        return (y * self.count.to(x.device)).cos() * 2


@pytest.mark.parametrize(("size", "names"), [(3, ["to", "graph_0"]), (1 << 15, ["graph_0", "to", "graph_1"])])
def test_small_copies_from_the_cpu_come_before_a_graph(size, names):
    """A large copy stays in its place, so that it takes no memory before it is read."""
    compiled = thunder.jit(Counting(size), executors=(EXECUTOR, "torch"))
    absent = compile_for(compiled, torch.device("cuda"), "sm_90", [])
    with torch.no_grad():
        absent(torch.ones(size, device="meta"))
    (program,) = specializations_of(absent).programs
    assert [line.symbol.short_name for line in program.last("computation").bound_symbols if line.executor] == names


def test_a_token_for_an_absent_gpu_is_one_graph_that_writes_to_the_cache():
    model = model_of("llama")
    cache = StaticCache(config=model.config, max_cache_len=32)
    name = cache_argument(model)
    given = {name: cache, "position_ids": torch.tensor([[7]]), "logits_to_keep": 1}
    with torch.no_grad():
        model(prompt_of(1, 7), **{name: cache})
        for layer in cache.layers:
            layer.device = torch.device("cuda")  # a separate attribute that does not follow the tensors
        given |= {"input_ids": prompt_of(1, 1), "attention_mask": torch.ones(1, 1, 1, 32, dtype=torch.bool)}
        program, _ = trace_for(thunder.jit(model, executors=(EXECUTOR, "torch")), torch.device("cuda"), (), given)
    (line,) = program.last("computation").bound_symbols
    assert line.executor == "cudagraphs"
    captured = line.symbol.target
    inputs = [proxy.name for proxy in line.inputs]
    of_cache = {argument for argument in inputs if argument.startswith(f"{name}_layers")}
    assert {inputs[number] for number in captured.held} == {inputs[number] for number in captured.written} == of_cache
    assert len(of_cache) == 6, "keys, values and the count of two layers"


def by_mask(x):
    y = x * 2 + 1
    y[x > 0] = 0.5
    return y.exp() + 1, x.sin() * 2


def taken(x):
    return (x * 2)[x > 0].sum() + 1, x.sin() + 1


def counted(x):
    return x.nonzero().sum() + 1, x.cos() * 2


class Recordable(CudaGraphs):
    """The wrapper, for lines on the CPU that could be recorded on CUDA."""

    def wraps(self, bsym):
        return not any(map(cannot_be_recorded, bsym.at_level("aten")))


@pytest.mark.parametrize(("function", "inside"), [(by_mask, {"sin"}), (taken, {"sin"}), (counted, {"cos"})])
def test_operations_that_count_on_the_host_stay_outside(cuda, function, inside):
    """A mask as an index is counted on the host, which waits for the GPU: a capture would fail."""
    compiled = thunder.jit(function, executors=(Recordable(), "torch"))
    for x in (torch.tensor([1.0, -1.0, 2.0]), torch.tensor([1.0, 3.0, 2.0]), torch.tensor([-1.0, -1.0, 2.0])):
        torch.testing.assert_close(compiled(x), function(x))
    operations = [
        operation.symbol.name.split(".")[-2]
        for line in graphs_in(compiled)
        for part in line.subsymbols
        for operation in part.at_level("aten")
    ]
    assert inside <= set(operations)
    assert not {"index", "index_put_", "index_put", "nonzero"} & set(operations)


def test_an_index_of_numbers_is_part_of_a_graph(cuda):
    """PyTorch tags `index` as an operation whose result has a dynamic shape, which only a mask gives it."""

    def function(x, positions):
        return (x * 2 + 1)[positions].exp() + 1

    compiled = thunder.jit(function, executors=(Recordable(), "torch"))
    for _ in range(3):
        x, positions = torch.randn(5, 3), torch.randint(5, (4,))
        torch.testing.assert_close(compiled(x, positions), function(x, positions))
    (graph,) = graphs_in(compiled)
    assert "__getitem__" in {part.symbol.short_name for part in graph.subsymbols}
    assert len(graph.subsymbols) == 5


def test_lines_on_two_devices_are_two_graphs(cuda):
    """A capture is on one device: the kernels of another device would run once, and never in a replay."""

    def function(x, y):
        a, b = (x * 2 + 1).tanh(), (y * 2 + 1).tanh()
        return a * x, b * y

    compiled = thunder.jit(function, executors=(OnCpu(), "torch"))
    compiled(torch.randn(3), torch.randn(3, device="meta"))
    devices = [{proxy.device.type for proxy in (*line.inputs, *line.outputs)} for line in graphs_in(compiled)]
    assert devices == [{"cpu"}, {"meta"}]


@pytest.mark.parametrize(
    "name",
    ["_c10d_functional.all_reduce", "_c10d_functional.wait_tensor", "thunder_c10d.reduce_scatter_tensor_", "c10d.send"],
)
def test_collectives_are_no_part_of_a_graph(name):
    """A capture on one rank would wait for ranks that replay."""
    assert cannot_be_recorded(BoundSymbol(Symbol(f"torch.ops.{name}.default", None), (), {}, None))


def test_negated_views_are_not_captured(cuda):
    compiled = thunder.jit(lambda x: (x * 2 + 1).relu() - 3, executors=(OnCpu(), "torch"))
    for real in (torch.randn(4), torch._neg_view(torch.ones(4)), torch._neg_view(torch.randn(4)), torch.randn(4)):
        assert torch.equal(compiled(real), (real * 2 + 1).relu() - 3)
