"""CUDA graphs: a recorded graph returns the results of eager at each call.

On the CPU a stand-in replaces the recording.
"""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from transformers import StaticCache

import thunder_core as thunder
from tests.generation.models import model_of, prompt_of
from thunder_core.backend.claiming.claim import claims_by_executor
from thunder_core.backend.fusion.machine_code import machine_code_of
from thunder_core.compilation.compiler import specializations_of, trace_for
from thunder_core.compilation.compiler.for_device import compile_for
from thunder_core.compilation.compiler.last_call import last_program
from thunder_core.foundation.transformers_versions import cache_argument
from thunder_core.tracing.ir.symbol import Symbol
from thunder_core.workflow.fault_localization.examination import examine
from thunder_executors.cudagraphs import EXECUTOR, CudaGraphs, cannot_be_recorded, graph


class StandIn:
    """A stand-in that records a function: a replay calls the function and writes to the memory of the first results.

    Writes during the recording are undone, because recording runs nothing. Autograd does not see the writes of a
    replay.
    """

    def __init__(self):
        self.records = self.replays = 0
        self.error = ""
        self.tensors = ()

    def device_stream(self, tensors):
        self.tensors = tensors
        return 0, 0

    def record(self, function, place):
        if self.error:
            raise RuntimeError(self.error)
        self.records += 1
        tensors = self.tensors
        storages = [tensor.untyped_storage() for tensor in tensors]
        before = [storage.clone() for storage in storages]
        with torch.autograd._unsafe_preserve_version_counter(tensors):
            results = function()
        for storage, old in zip(storages, before, strict=True):
            storage.copy_(old)

        def replay():
            self.replays += 1
            with torch.autograd._unsafe_preserve_version_counter(tensors):
                again = function()
            for old, new in zip(results, again, strict=True):
                old.untyped_storage().copy_(new.untyped_storage())

        return replay, results


class OnCpu(CudaGraphs):
    """The wrapper, for lines on the CPU."""

    def wraps(self, bsym):
        return True


@pytest.fixture
def cuda(monkeypatch):
    monkeypatch.setattr(graph, "CUDA", StandIn())
    return graph.CUDA


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.nn.functional.silu(layer(x))
        return x


Model.__module__ = "tests.executors.cudagraphs.test_cudagraphs"


def graphs_in(compiled):
    return [line for line in thunder.last_traces(compiled)[-1].bound_symbols if line.executor == "cudagraphs"]


@pytest.fixture
def fast():
    executor = thunder.OperatorExecutor("fast")

    @executor.implements(torch.nn.functional.silu)
    def fast_silu(input, inplace=False):  # noqa: A002
        return input * torch.sigmoid(input)

    return executor


def test_each_call_equals_eager(cuda, fast):
    model = Model()
    compiled = thunder.jit(model, executors=(fast, OnCpu(), "torch"))
    with torch.no_grad():
        inputs = [torch.randn(2, 4) for _ in range(6)]
        found = [compiled(x) for x in inputs]
        for x, actual in zip(inputs, found, strict=True):
            torch.testing.assert_close(actual, model(x))
    assert len(graphs_in(compiled)) == 1
    assert (cuda.records, cuda.replays) == (1, 5)


def test_weights_are_read_in_place_and_arguments_are_copied(cuda):
    model = Model()
    compiled = thunder.jit(model, executors=(OnCpu(), "torch"))
    x, y = torch.randn(2, 4), torch.randn(2, 4)
    with torch.no_grad():
        compiled(x), compiled(x)
        (line,) = graphs_in(compiled)
        captured = line.symbol.target
        inputs = [proxy.name for proxy in line.inputs]
        (recording,) = captured.recordings.values()
        assert [inputs[number] for number in recording.buffers] == ["x"]
        torch.testing.assert_close(compiled(y), model(y))
        torch.testing.assert_close(compiled(x), model(x))
    assert cuda.records == 1, "an argument may be another tensor at each call"


def test_a_weight_that_has_moved_is_recorded_again_and_never_copied(cuda):
    model = Model()
    compiled = thunder.jit(model, executors=(OnCpu(), "torch"))
    x = torch.randn(2, 4)
    with torch.no_grad():
        compiled(x), compiled(x)
        model.layers[0].weight.data = torch.ones(4, 4)
        torch.testing.assert_close(compiled(x), model(x))
        model.layers[0].weight.data.mul_(2)
        torch.testing.assert_close(compiled(x), model(x))
        model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)
        torch.testing.assert_close(compiled(x), model(x))
    (line,) = graphs_in(compiled)
    (recording,) = line.symbol.target.recordings.values()
    assert len(recording.addresses) == 6
    assert len(recording.buffers) == 1
    assert cuda.records == 3


def test_an_examination_on_copies_of_the_weights_leaves_the_graph_unchanged(cuda):
    model = Model()
    compiled = thunder.jit(model, executors=(OnCpu(), "torch"))
    x = torch.randn(2, 4)
    with torch.no_grad():
        compiled(x), compiled(x)
        (line,) = graphs_in(compiled)
        before = dict(line.symbol.target.recordings)
        program = last_program(compiled)
        report = examine(program, model, (x,), {}, probe_guards=False)
        compiled(x)
    assert not report.faults
    assert line.symbol.target.recordings == before
    assert cuda.records == 1


def test_expanded_and_overlapping_inputs_are_copied_once(cuda):
    compiled = thunder.jit(lambda x, y: (x * y + 1).tanh() * 2, executors=(OnCpu(), "torch"))
    for _ in range(4):
        row, memory = torch.randn(1, 4), torch.randn(8)
        x, y = row.expand(3, 4), memory.as_strided((3, 4), (2, 1))
        torch.testing.assert_close(compiled(x, y), (x * y + 1).tanh() * 2)
    (recording,) = graphs_in(compiled)[0].symbol.target.recordings.values()
    assert sorted(buffer.memory.numel() for buffer in recording.buffers.values()) == [4, 8]


def test_each_set_of_symbolic_sizes_has_a_separate_graph(cuda):
    model = Model()
    compiled = thunder.jit(model, executors=(OnCpu(), "torch"), cache="symbolic values")
    with torch.no_grad():
        for rows in (3, 5, 3, 5, 7, 3, 5):
            x = torch.randn(rows, 4)
            torch.testing.assert_close(compiled(x), model(x))
    assert thunder.cache_misses(compiled) == 1
    (line,) = graphs_in(compiled)
    assert line.symbol.target.symbolic
    assert (cuda.records, cuda.replays) == (2, 4), "a graph for 3 and one for 5 rows"


def test_views_alone_are_no_graph(cuda):
    compiled = thunder.jit(lambda x: (x.t()[1:], x.view(-1).unsqueeze(0)), executors=(OnCpu(), "torch"))
    compiled(torch.randn(2, 4))
    assert graphs_in(compiled) == []


def test_region_with_copies_costlier_than_launches_is_no_graph(cuda):
    compiled = thunder.jit(lambda x: x.exp() + 1, executors=(OnCpu(), "torch"))
    compiled(torch.randn(2, 1 << 22))
    assert graphs_in(compiled) == []


def shares(x):
    y = x.exp() + 1
    return y, y.t(), y[0], x.t(), x[1:], (y * 2).expand(3, 2, 4)


def test_results_share_memory_as_before(cuda):
    compiled = thunder.jit(shares, executors=(OnCpu(), "torch"))
    for _ in range(4):
        x = torch.randn(2, 4)
        found, expected = compiled(x), shares(x)
        places = [tensor.untyped_storage().data_ptr() for tensor in (x, *found)]
        assert [places.index(place) for place in places] == [0, 1, 1, 1, 0, 0, 6]
        for actual, wanted in zip(found, expected, strict=True):
            torch.testing.assert_close(actual, wanted)
            assert (actual.stride(), actual.storage_offset()) == (wanted.stride(), wanted.storage_offset())
    found[0].zero_()
    assert not found[1].any()
    assert cuda.replays


def test_a_result_outlives_the_next_call(cuda):
    compiled = thunder.jit(lambda x: (x * 2 + 1).tanh(), executors=(OnCpu(), "torch"))
    x = torch.randn(3)
    results = [compiled(x + number) for number in range(4)]
    for number, result in enumerate(results):
        torch.testing.assert_close(result, ((x + number) * 2 + 1).tanh())


def test_region_that_cannot_be_recorded_runs_without_a_graph(cuda):
    cuda.error = "operation not permitted when stream is capturing\nmore"
    compiled = thunder.jit(lambda x: x.exp() + 1, executors=(OnCpu(), "torch"))
    x = torch.randn(3)
    compiled(x)
    with pytest.warns(RuntimeWarning, match="operation not permitted"):
        torch.testing.assert_close(compiled(x), x.exp() + 1)
    torch.testing.assert_close(compiled(x), x.exp() + 1)
    assert graphs_in(compiled)[0].symbol.target.failed == "operation not permitted when stream is capturing"


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


def test_a_derived_backward_is_wrapped_too(cuda):
    model = Model()
    compiled = thunder.jit(model, executors=(OnCpu(), "torch"))
    x = torch.randn(2, 4)
    for _ in range(4):
        model.zero_grad()
        compiled(x).sum().backward()
        found = [weight.grad.clone() for weight in model.parameters()]
        model.zero_grad()
        model(x).sum().backward()
        torch.testing.assert_close(found, [weight.grad for weight in model.parameters()])
    backward = thunder.last_backward_traces(compiled)[-1].bound_symbols
    assert graphs_in(compiled)
    assert [line for line in backward if line.executor == "cudagraphs"]
    assert cuda.replays > 4


TEXT = """\
import thunder_executors.cudagraphs.graph


def region(fast_silu, x):
    t0 = fast_silu(x, inplace=False)
    t1 = t0 * 2.0
    del t0
    return (t1,)


region = thunder_executors.cudagraphs.graph.captured(region, 1)
"""


def test_the_text_of_a_graph(cuda, fast):
    compiled = thunder.jit(lambda x: torch.nn.functional.silu(x) * 2.0, executors=(fast, OnCpu(), "torch"))
    compiled(torch.randn(3))
    (line,) = graphs_in(compiled)
    assert machine_code_of(line.symbol.target).text == TEXT
    printed = str(thunder.last_traces(compiled)[-1])
    assert "(t1,) = graph_0(fast_silu, x)" in printed
    assert "#   t0 = fast_silu(x, inplace=False)  [fast]" in printed
    assert claims_by_executor(thunder.last_traces(compiled)[-1]) == {"cudagraphs": 2}


def test_a_graph_is_kept_in_an_artifact(cuda, tmp_path):
    model, x = Model(), torch.randn(2, 4)
    with torch.no_grad():
        compiled = thunder.jit(model, executors=(OnCpu(), "torch"))
        compiled(x)
        thunder.save(compiled, tmp_path / "artifact")
        loaded = thunder.load(tmp_path / "artifact", model, strict=True)
        for number in range(3):
            torch.testing.assert_close(loaded(x + number), model(x + number))
    assert cuda.replays


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
    for _ in range(3):
        x = torch.randn(5)
        torch.testing.assert_close(compiled(x), function(x))
    operations = [
        operation.symbol.name.split(".")[-2]
        for line in graphs_in(compiled)
        for part in line.subsymbols
        for operation in part.at_level("aten")
    ]
    assert inside <= set(operations)
    assert not {"index", "index_put_", "index_put", "nonzero"} & set(operations)


@pytest.mark.parametrize("name", ["all_reduce", "all_gather_into_tensor", "wait_tensor"])
def test_collectives_are_no_part_of_a_graph(name):
    """A capture on one rank would wait for ranks that replay."""
    operation = SimpleNamespace(symbol=Symbol(f"torch.ops._c10d_functional.{name}.default", None), inputs=())
    assert cannot_be_recorded(operation)


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


@pytest.mark.gpu
def test_on_a_gpu_each_call_equals_eager():
    model = Model().cuda()
    compiled = thunder.jit(model, executors=(EXECUTOR, "torch"))
    inputs = [torch.randn(2, 4, device="cuda") for _ in range(6)]
    with torch.no_grad():
        found = [compiled(x) for x in inputs]
        for x, actual in zip(inputs, found, strict=True):
            torch.testing.assert_close(actual, model(x))
    (line,) = graphs_in(compiled)
    assert line.symbol.target.recordings
    assert not line.symbol.target.failed


@pytest.mark.gpu
def test_on_a_gpu_results_share_memory_as_before():
    compiled = thunder.jit(shares, executors=(EXECUTOR, "torch"))
    for _ in range(4):
        x = torch.randn(2, 4, device="cuda")
        for actual, wanted in zip(compiled(x), shares(x), strict=True):
            torch.testing.assert_close(actual, wanted)
            assert actual.stride() == wanted.stride()


@pytest.mark.gpu
def test_on_a_gpu_each_stream_has_its_graph():
    compiled = thunder.jit(lambda x: (x * 2 + 1).tanh(), executors=(EXECUTOR, "torch"))
    x = torch.randn(1000, device="cuda")
    torch.cuda.synchronize()
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            results = [compiled(x + number) for number in range(4)]
        stream.synchronize()
        for number, result in enumerate(results):
            torch.testing.assert_close(result, ((x + number) * 2 + 1).tanh())
    (line,) = graphs_in(compiled)
    assert len(line.symbol.target.recordings) == 2


class Pair(torch.nn.Module):
    """Views of inputs with dtypes of other sizes, and a computed tensor."""

    def forward(self, x, z):
        return x[2:].view(torch.int16)[3:], x.view(torch.int64), torch.view_as_real(z)[1:], z.imag, x * 2 + 1


Pair.__module__ = "tests.executors.cudagraphs.test_cudagraphs"


def test_results_that_are_views_of_inputs_with_other_dtypes(cuda):
    model = Pair()
    compiled = thunder.jit(model, executors=(OnCpu(), "torch"))
    memory = torch.randn(24)
    for start in (0, 0, 0, 2, 4, 8):
        x, z = memory[start : start + 8], torch.randn(4, dtype=torch.complex64)[start // 4 :][:2]
        results = compiled(x, z)
        for result, expected in zip(results, model(x, z), strict=True):
            assert (result.dtype, result.stride()) == (expected.dtype, expected.stride())
            assert torch.equal(result, expected)
        for result, given in zip(results, (x, x, z, z), strict=False):
            assert result.untyped_storage().data_ptr() == given.untyped_storage().data_ptr()
            assert result._version == given._version
    assert cuda.replays > 2
    with pytest.raises(RuntimeError, match="offset"):
        compiled(memory[1:9], z)


def test_negated_views_are_not_captured(cuda):
    compiled = thunder.jit(lambda x: (x * 2 + 1).relu() - 3, executors=(OnCpu(), "torch"))
    for real in (torch.randn(4), torch._neg_view(torch.ones(4)), torch._neg_view(torch.randn(4)), torch.randn(4)):
        assert torch.equal(compiled(real), (real * 2 + 1).relu() - 3)
