"""CUDA graphs: a recorded graph returns the results of eager at each call.

On the CPU a stand-in replaces the recording.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
import torch

import thunder_core as thunder
from tests.executors.cudagraphs.stand_in import OnCpu, graphs_in
from thunder_core.backend.claiming.claim import claims_by_executor
from thunder_core.backend.fusion.machine_code import machine_code_of
from thunder_core.compilation.compiler.last_call import last_program
from thunder_core.foundation.errors import Bug, OutOfTolerance
from thunder_core.foundation.options.tolerance import Tolerance
from thunder_core.workflow.fault_localization.examination import examine
from thunder_core.workflow.validation import validate
from thunder_core.workflow.validation.comparison import ValidationSettings
from thunder_executors.cudagraphs import EXECUTOR, graph
from thunder_executors.cudagraphs.address_changes import EARLY_CHANGES, FEW_REPLAYS


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.nn.functional.silu(layer(x))
        return x


Model.__module__ = "tests.executors.cudagraphs.test_cudagraphs"


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


@dataclass
class Encoded:
    hidden: torch.Tensor


def test_an_input_that_moves_at_each_call_is_copied_until_it_stays(cuda):
    """A member of an object counts as a cache, but each call may have a new object."""

    def function(x, encoded):
        return ((x * 2 + 1).tanh() + encoded.hidden).exp()

    compiled = thunder.jit(function, executors=(OnCpu(), "torch"))
    x, all_encoded = torch.randn(4), [Encoded(torch.randn(4)) for _ in range(20)]
    for encoded in all_encoded:
        torch.testing.assert_close(compiled(x, encoded), function(x, encoded))
    assert cuda.records == 1 + EARLY_CHANGES
    for _ in range(FEW_REPLAYS + 10):
        encoded.hidden.add_(0.5)
        torch.testing.assert_close(compiled(x, encoded), function(x, encoded))
    assert cuda.records == 2 + EARLY_CHANGES
    (line,) = graphs_in(compiled)
    (recording,) = line.symbol.target.recordings.values()
    assert list(recording.addresses.values()) == [encoded.hidden.data_ptr()]
    torch.testing.assert_close(compiled(x, all_encoded[0]), function(x, all_encoded[0]))
    assert cuda.records == 3 + EARLY_CHANGES


def test_weights_that_change_at_each_call_are_copied(cuda):
    model = Model()
    compiled = thunder.jit(model, executors=(OnCpu(), "torch"))
    kept = []
    with torch.no_grad():
        for _ in range(10):
            kept.append({name: torch.randn_like(value) for name, value in model.state_dict().items()})
            model.load_state_dict(kept[-1], assign=True)
            x = torch.randn(2, 4)
            torch.testing.assert_close(compiled(x), model(x))
    assert cuda.records == 1 + EARLY_CHANGES


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


def test_kernels_for_the_alignment_of_the_buffers_are_compiled_before_the_capture(cuda):
    """Triton compiles another kernel for an aligned address, and machine code cannot be loaded during a capture."""
    calls = []

    def function(x, total):
        calls.append((x.data_ptr() % graph.ALIGNMENT, cuda.records))
        total.add_(x.sum())
        return (x * 2,)

    run = graph.captured(function, 0, (1,), (1,))
    memory, total = torch.ones(9), torch.zeros(())
    for number in range(1, 4):
        (result,) = run(memory[1:], total)
        assert torch.equal(result, memory[1:] * 2)
        assert (total.item(), total._version) == (8 * number, number)
    assert calls[:3] == [(4, 0), (0, 0), (0, 1)]
    calls.clear()
    run = graph.captured(function, 0, (1,), (1,))
    run(memory[:8], total), run(memory[:8], total)
    assert calls[:2] == [(0, 1), (0, 2)]


def test_a_thread_calls_the_function_before_it_captures_it(cuda):
    """Libraries such as cuDNN make a handle for each thread, which cannot be made during a capture."""
    calls = []

    def function(x):
        calls.append((threading.get_ident(), cuda.records))
        return (x * 2,)

    run, x = graph.captured(function, 0), torch.ones(3)
    with ThreadPoolExecutor(1) as other:
        here, there = threading.get_ident(), other.submit(threading.get_ident).result()
        run(x)
        (result,) = other.submit(run, x).result()
    assert torch.equal(result, x * 2)
    assert calls[:3] == [(here, 0), (there, 0), (there, 1)]


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


def test_an_error_of_the_driver_during_a_capture_does_not_escape(cuda, monkeypatch):
    """Loading machine code is not permitted during a capture; the driver's error is no error of the program."""

    def record(function, place, has_own_pool):
        raise Bug("cuModuleLoadData failed: CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED (900)", fix="please report it")

    compiled = thunder.jit(lambda x: x.exp() + 1, executors=(OnCpu(), "torch"))
    x = torch.randn(3)
    compiled(x)
    monkeypatch.setattr(cuda, "record", record)
    with pytest.warns(RuntimeWarning, match="CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"):
        torch.testing.assert_close(compiled(x), x.exp() + 1)
    torch.testing.assert_close(compiled(x), x.exp() + 1)
    assert "CAPTURE_UNSUPPORTED" in graphs_in(compiled)[0].symbol.target.failed


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


def test_validation_on_one_input_replays_a_graph(cuda, monkeypatch):
    model = Model().eval()
    compiled = thunder.jit(model, executors=(OnCpu(), "torch"))
    inputs, tolerance = [{"x": torch.randn(2, 4)}], Tolerance()
    assert validate(compiled, model, inputs, tolerance, ValidationSettings(language_model=False)).passed
    assert (cuda.records, cuda.replays) == (1, 1)
    replay = graph.Recording.__call__
    monkeypatch.setattr(graph.Recording, "__call__", lambda *args: tuple(2 * result for result in replay(*args)))
    with pytest.raises(OutOfTolerance):
        validate(compiled, model, inputs, tolerance, ValidationSettings(language_model=False))
