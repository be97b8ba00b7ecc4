"""The configurations of Inductor's kernels are timed on a GPU, which is replaced here, and the fastest one is kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import thunder_core as thunder
from tests.executors.inductor.test_gpu import Interpreted, drawn, there
from tests.executors.inductor.test_inductor import regions_of
from thunder_core.foundation import plugins

if not plugins.is_installed("triton"):
    pytest.skip("needs Triton", allow_module_level=True)

from torch._inductor.runtime import triton_helpers

from tests.executors.inductor.regions import evaluate_region
from thunder_core.backend.claiming.device_code import targeting
from thunder_core.backend.claiming.tuning import TuningBudget, tuning
from thunder_core.backend.fusion.machine_code import MachineCode, machine_code_of
from thunder_core.workflow.pipeline.session.trace_stats import kernel_choices
from thunder_executors.inductor import configurations, gpu, launch, region_cache
from thunder_executors.inductor.building import machine
from thunder_executors.inductor.configurations import Configuration, ConfiguredKernel
from thunder_executors.inductor.cubins import grid_name, load_kernel, title_of
from thunder_executors.triton import measurement
from thunder_executors.triton.launch import INTERPRETED

ROOT = Path(__file__).resolve().parents[3]


def turned(x, y):
    return (x.t() * y).exp(), x.sum(-1)


def transposed(x, y):
    return (x.t() * y).exp() + 1


def in_place(x, y):
    x.mul_(2).add_(y.sin())
    return x.sum(-1)


def gathered(x, indices):
    return x[indices] * 2 + 1, indices + 1


@pytest.fixture
def compiled(monkeypatch, tmp_path):
    """Kernels that Triton's interpreter runs, by the titles of their configurations, and the kept kernels."""
    kept = {}

    def interpret(name, source, numbers, target, *, first_only):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        kernel = load_kernel(name, source, folder)
        found = []
        for setting in kernel.configs[:1] if first_only else kernel.configs:
            one = SimpleNamespace(fn=kernel.fn, configs=[setting], inductor_meta=kernel.inductor_meta)
            runs = Interpreted(name, one, numbers)
            found.append(Configuration(title_of(setting), runs, runs.text, grid_name(name)))
        return ConfiguredKernel(name, source, tuple(found), frozenset(kernel.mutated_arg_names))

    def library_of(kernels):
        kept.update(kernels)
        return b"none"

    guards = torch._C._dynamo.guards
    monkeypatch.setattr(triton_helpers, "set_driver_to_gpu", lambda: None)
    monkeypatch.setattr(gpu, "compile_configurations", interpret)
    monkeypatch.setattr(gpu, "library_of", library_of)
    monkeypatch.setattr(launch, "kernels_of", lambda library: kept)
    monkeypatch.setattr(launch, "on_gpu", lambda function, index, written=(): function)
    monkeypatch.setattr(guards, "_empty_strided_cuda", guards._empty_strided_cpu, raising=False)
    monkeypatch.setattr(configurations, "made_up", on_cpu(configurations.made_up))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "a GPU")
    monkeypatch.setenv("THUNDER_CACHE_DIR", str(tmp_path / "cache"))
    return kept


def on_cpu(function):
    return lambda proxy: function(replace(proxy, device=torch.device("cpu")))


@pytest.fixture
def timed(monkeypatch):
    """A measurement that runs each call three times. The first configuration, which is last, is the slowest."""
    calls = []

    def milliseconds(call):
        for _ in range(3):
            call()
        calls.append(call)
        return 1.0 + 0.1 * len(calls)

    monkeypatch.setattr(measurement, "milliseconds", milliseconds)
    return calls


def region_for(function, *inputs, **options):
    (occurrence, *_) = (occurrence for _, occurrence in regions_of(function, *inputs, **options))
    return occurrence.region


@pytest.mark.parametrize("function", [turned, in_place])
def test_every_configuration_is_timed_and_the_fastest_one_is_kept(function, compiled, timed, monkeypatch):
    region = region_for(
        function, torch.randn(64, 128), torch.randn(128, 64) if function is turned else torch.ones(64, 128)
    )
    given = []
    monkeypatch.setattr(
        gpu, "choose_configurations", partial(remember, gpu.choose_configurations, given.append, monkeypatch)
    )
    code = gpu.build_region(there(region), "sm_90", TuningBudget(60.0))
    assert isinstance(code, MachineCode), code
    (kernels,) = given
    several = [kernel for kernel in kernels.values() if len(kernel.configurations) > 1]
    assert several
    assert len(timed) == sum(len(kernel.configurations) for kernel in several)
    for kernel in several:
        first, *others = (each.title for each in kernel.configurations)
        assert compiled[kernel.name] is next(
            each.kernel for each in kernel.configurations if f"{kernel.name}: {each.title} " in code.choice
        )
        assert all(f"{title} " in code.choice for title in (first, *others))
        assert not code.choice.startswith(f"{kernel.name}: {first} ")
    ours, expected = ([drawn(proxy) for proxy in region.inputs] for _ in range(2))
    found = code.function("region_0")([*ours])
    wanted = evaluate_region(region, tuple(expected))
    for actual, expected_result in zip(found if isinstance(found, tuple) else (found,), wanted, strict=True):
        torch.testing.assert_close(actual, expected_result, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours, expected)


def remember(function, note, monkeypatch, region, text, kernels, budget):
    """Check that the timed launches write to copies: the run for measurements changes its inputs as one call does."""
    note(kernels)
    inputs = []
    make = configurations.made_up_inputs

    def made(region):
        inputs.append(make(region))
        inputs.append([value.clone() if isinstance(value, torch.Tensor) else value for value in inputs[0]])
        return [*inputs[0]]

    with monkeypatch.context() as patch:
        patch.setattr(configurations, "made_up_inputs", made)
        result = function(region, text, kernels, budget)
    evaluate_region(region, tuple(inputs[1]))
    torch.testing.assert_close(inputs[0], inputs[1])
    return result


def test_one_kernel_serves_all_sizes_with_the_grid_of_its_configuration(compiled, timed):
    region = region_for(transposed, torch.randn(64, 128), torch.randn(128, 64), cache="symbolic values")
    assert region.symbols
    code = gpu.build_region(there(region), "sm_90", TuningBudget(60.0))
    assert isinstance(code, MachineCode), code
    assert timed
    assert "def grid_of_triton_" in code.text
    (first, second), inputs = (96, 32), (torch.randn(96, 32), torch.randn(32, 96))
    by_hint = {64: first, 128: second}
    numbers = [by_hint[int(proxy.value.node.hint)] for proxy in region.symbols]
    found = code.function("region_0")([*inputs, *numbers])
    torch.testing.assert_close(found, transposed(*inputs), rtol=1e-5, atol=1e-5)


def test_without_time_the_first_configuration_remains_and_the_report_says_so(compiled, timed):
    region = region_for(turned, torch.randn(64, 128), torch.randn(128, 64))
    code = gpu.build_region(there(region), "sm_90", TuningBudget(0.05))
    assert isinstance(code, MachineCode), code
    assert timed == []
    assert code.choice.count(", not measured") == code.choice.count("; ") + 1


def test_a_region_that_fails_with_made_up_inputs_keeps_the_first_configuration(compiled, timed, monkeypatch):
    monkeypatch.setattr(configurations, "made_up", lambda proxy: None)
    region = region_for(turned, torch.randn(64, 128), torch.randn(128, 64))
    code = gpu.build_region(there(region), "sm_90", TuningBudget(60.0))
    assert isinstance(code, MachineCode), code
    assert "not measured" in code.choice


def test_made_up_indices_are_zero_and_strides_are_those_of_the_region():
    region = region_for(gathered, torch.randn(5, 8).t(), torch.tensor([4, 2]))
    x, indices = (on_cpu(configurations.made_up)(proxy) for proxy in region.inputs)
    assert (x.shape, x.stride(), indices.tolist()) == ((8, 5), (1, 8), [0, 0])
    assert x.std() > 0.1


def test_measurements_are_kept_for_the_next_process(compiled, timed):
    region = there(region_for(turned, torch.randn(64, 128), torch.randn(128, 64)))
    first = gpu.build_region(region, "sm_90", TuningBudget(60.0))
    calls = len(timed)
    second = gpu.build_region(region, "sm_90", TuningBudget(60.0))
    assert calls == len(timed)
    assert (first.text, first.choice) == (second.text, second.choice)


def test_nothing_is_measured_for_an_absent_gpu_or_without_time(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "a GPU")
    with tuning(10.0):
        assert machine.tuning_facts(torch.device("cuda", 0)) == {"tuning": "10 seconds on a GPU"}
        with targeting("sm_90"):
            assert machine.tuning_facts(torch.device("cuda", 0)) == {}
    with tuning(0.0):
        assert machine.tuning_facts(torch.device("cuda", 0)) == {}


def test_the_cache_and_the_report_have_the_choice(tmp_path):
    code = MachineCode("def region(args):\n    return args[0]\n", b"", (), (), "triton_0: XBLOCK 8 1 ms, XBLOCK 4 2 ms")
    for name, content in region_cache._files(code).items():
        (tmp_path / name).write_bytes(content)
    entry = SimpleNamespace(
        contents={path.name: path.read_bytes() for path in tmp_path.iterdir()},
        read=lambda name: (tmp_path / name).read_bytes(),
    )
    assert region_cache.read(entry) == code
    function = code.function("region_0")
    assert machine_code_of(function) is code
    traced = thunder.jit(lambda x: x + 1, executors=["torch"])
    traced(torch.ones(2))
    trace = thunder.last_traces(traced)[-1]
    (line,) = (bsym for bsym in trace.bound_symbols if bsym.executor == "torch")
    line = replace(line, symbol=replace(line.symbol, target=function), executor="inductor")
    assert kernel_choices(replace(trace, bound_symbols=(line,)))[0].choice == code.choice


PROGRAM = """
import ctypes, json, sys, torch
from contextlib import nullcontext
from types import SimpleNamespace
from tests.executors.inductor.test_configurations import region_for, on_cpu, turned
from tests.executors.inductor.test_gpu import there
from tests.executors.triton.test_driver import Notes
from thunder_core.backend.claiming.tuning import TuningBudget
from thunder_executors.inductor import configurations, gpu, launch
from thunder_executors.triton import measurement
from thunder_executors.triton.driver import Driver

class Gpu(Notes):
    def __init__(self):
        super().__init__()
        self.launches = []

    def cuLaunchKernel(self, function, *rest):
        self.launches.append((function.value, rest[:6]))
        return 0

class Counting(Driver):
    # Each machine code is a function, whose number is that of its loading.
    def function(self, cubin):
        loaded.append(cubin.image)
        return ctypes.c_void_p(len(loaded))

notes, loaded = Gpu(), []
guards = torch._C._dynamo.guards
guards._empty_strided_cuda = guards._empty_strided_cpu
launch.driver = lambda: Counting(notes)
torch.cuda.current_device = lambda: 0
torch.cuda.get_device_name = lambda device=None: "a GPU"
torch.cuda.current_stream = lambda device: SimpleNamespace(cuda_stream=1)
torch.cuda.device = lambda index: nullcontext()
configurations.made_up = on_cpu(configurations.made_up)
timed = []

def milliseconds(call):
    before = len(notes.launches)
    call()
    timed.append(notes.launches[before:])
    return 1.0 if timed[-1][0][0] == 3 else 2.0

measurement.milliseconds = milliseconds
region = region_for(turned, torch.randn(64, 128), torch.randn(128, 64))
code = gpu.build_region(there(region), "sm_90", TuningBudget(60.0))
kept = [image for _, image in launch.images_of(code.library)]
print(json.dumps({
    "timed": [[function for function, _ in launches] for launches in timed],
    "grids": [launches[0][1] for launches in timed],
    "last": notes.launches[-1][0],
    "kept": [loaded.index(image) + 1 for image in kept],
}))
"""


@pytest.mark.skipif(not INTERPRETED, reason="the GPU's own tests launch on the GPU")
def test_a_driver_launches_each_compiled_configuration_and_the_library_has_the_fastest(tmp_path):
    """A separate process compiles, because the interpreter, which the tests have enabled, compiles nothing."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, (ROOT, ROOT / "executors", ROOT / "recipes")))
    environment["THUNDER_CACHE_DIR"] = str(tmp_path / "cache")
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))
    command = [sys.executable, str(tmp_path / "program.py")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert sorted(found["timed"]) == [[number] for number in range(1, 7)]
    assert len({tuple(grid) for grid in found["grids"]}) > 1
    assert found["last"] == 3
    assert found["kept"] == [3]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("function", [turned, in_place])
def test_a_gpu_times_all_configurations_and_computes_the_same(function, monkeypatch, tmp_path):
    monkeypatch.setenv("THUNDER_CACHE_DIR", str(tmp_path))
    inputs = [torch.randn(256, 512, device="cuda"), torch.randn(512, 256, device="cuda")]
    inputs[1] = inputs[1].t().contiguous() if function is in_place else inputs[1]
    compiled = thunder.jit(function, executors=("inductor", "torch"))
    with tuning(60.0), torch.no_grad():
        found = compiled(*(tensor.clone() for tensor in inputs))
        torch.testing.assert_close(found, function(*(tensor.clone() for tensor in inputs)))
    choices = kernel_choices(thunder.last_traces(compiled)[-1])
    assert choices
    print(choices)
