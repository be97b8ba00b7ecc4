"""Inductor's CUDA regions without a GPU: the generated code computes the results of PyTorch and compiles to cubins."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

import thunder_core as thunder
from tests.executors.inductor.test_inductor import PROGRAMS, UPDATES, layout, regions_of, shared
from tests.executors.inductor.test_inductor import random_tensors as two_drawn
from thunder_core.backend.claiming.device_code import targeting
from thunder_core.backend.fusion.fuse import Fused, FusionExecutor, Refusal
from thunder_core.backend.fusion.region import Region
from thunder_core.foundation import plugins
from thunder_core.foundation.options.target import TARGETS
from thunder_core.tracing.ir.proxy import TensorProxy, with_sizes

if not plugins.is_installed("triton"):
    pytest.skip("needs Triton", allow_module_level=True)

import triton.language
from torch._inductor.runtime import triton_helpers
from torch._inductor.runtime.triton_heuristics import GridExpr
from triton.runtime import interpreter

from tests.executors.inductor.regions import evaluate_region
from tests.executors.triton.conftest import rounding
from thunder_core.backend.fusion.conditions import size_of
from thunder_core.backend.fusion.machine_code import MachineCode
from thunder_core.foundation.errors import ArtifactForeign
from thunder_executors import inductor
from thunder_executors.inductor import gpu, launch, saturates_fp8, wrapper
from thunder_executors.inductor.configurations import Configuration, ConfiguredKernel
from thunder_executors.inductor.cubins import grid_text, load_kernel, names_in
from thunder_executors.inductor.sizes import compute_size
from thunder_executors.triton.cubin import Cubin
from thunder_executors.triton.launch import Specialization

ROOT = Path(__file__).resolve().parents[3]


def moved(proxies):
    return {p.name: replace(p, device=torch.device("cuda:0")) for p in proxies if isinstance(p, TensorProxy)}


def on_cuda(line):
    found = line.rename(moved((*line.inputs, *line.outputs)))
    if "device" in line.kwargs:
        found = replace(found, kwargs={**found.kwargs, "device": torch.device("cuda:0")})
    return found


def there(region):
    lines = tuple(map(on_cuda, region.operations))
    inputs, outputs = (tuple(moved(proxies).values()) for proxies in (region.inputs, region.outputs))
    return Region(inputs, lines, outputs, region.numbers, region.symbols)


class Functions:
    """Functions of CUDA's library, implemented by functions of Triton's interpreter."""

    def __getattr__(self, name):
        return getattr(triton.language.math, name)

    def tanh(self, x):
        return 2 / (1 + triton.language.exp(-2 * x)) - 1


class Interpreted:
    """A kernel that Triton's interpreter runs on the CPU with the first of its configurations."""

    def __init__(self, name, kernel, numbers):
        setting = kernel.configs[0]
        self.function, self.constants = kernel.fn, setting.kwargs
        self.function.fn.__globals__["libdevice"] = Functions()
        arguments = [name for name in self.function.arg_names if name not in setting.kwargs]
        sizes = {arguments[int(place)]: number for place, number in numbers.items()}
        expression = GridExpr.from_meta(kernel.inductor_meta, setting)
        self.text = ""
        if any(name in arguments and name not in sizes for name in names_in(expression)):
            self.text = grid_text(name, expression, arguments)
        else:
            grid = expression.eval_slow({**setting.kwargs, **sizes})
        self.arguments, self.grid = arguments, (lambda **values: grid)

    def with_grid(self, function):
        self.grid = function
        return self

    def __call__(self, *values):
        grid = self.grid(**dict(zip(self.arguments, values, strict=True)))
        if 0 not in grid:
            self.function[grid](*values, **self.constants)


@pytest.fixture
def interpreted(monkeypatch, tmp_path):
    """Return a function that runs a region's text on the CPU."""
    kernels = {}

    def compiled(name, source, numbers, target, *, first_only):
        assert first_only, "without a budget, nothing is timed"
        folder = tmp_path / str(len(kernels))
        folder.mkdir()
        kernels[name] = Interpreted(name, load_kernel(name, source, folder), numbers)
        configuration = Configuration("", kernels[name], kernels[name].text, "")
        return ConfiguredKernel(name, source, (configuration,), frozenset())

    monkeypatch.setattr(triton_helpers, "set_driver_to_gpu", lambda: None)
    monkeypatch.setattr(gpu, "compile_configurations", compiled)
    monkeypatch.setattr(gpu, "library_of", lambda kernels: b"none")
    monkeypatch.setattr(launch, "kernels_of", lambda library: kernels)
    monkeypatch.setattr(launch, "on_gpu", lambda function, index, written=(): function)

    def function(region):
        code = gpu.build_region(region, "sm_90")
        assert isinstance(code, MachineCode), code
        return replace(code, text=code.text.replace("_empty_strided_cuda", "_empty_strided_cpu")).function("region_0")

    return function


def drawn(proxy):
    made = torch.empty(sum((n - 1) * s for n, s in zip(proxy.shape, proxy.stride, strict=True)) + 1, dtype=proxy.dtype)
    if made.dtype.is_floating_point:
        made.copy_(torch.randn(made.shape, generator=torch.Generator().manual_seed(3)))
    else:
        made.random_(0, 3)
    return made.as_strided(proxy.shape, proxy.stride)


NAMES = [name for name in PROGRAMS if name != "nothing"]


@pytest.mark.parametrize("name", NAMES)
def test_regions_compute_the_results_of_pytorch(name, interpreted):
    region = regions_of(*PROGRAMS[name])[0][1].region
    given = [torch.empty(proxy.shape) if 0 in proxy.shape else drawn(proxy) for proxy in region.inputs]
    expected, found = evaluate_region(region, tuple(given)), interpreted(there(region))([*given])
    found = found if isinstance(found, tuple) else (found,)
    for actual, wanted in zip(found, expected, strict=True):
        rough = {"rtol": 2**-6, "atol": 2**-6} if actual.dtype in (torch.float16, torch.bfloat16) else {}
        torch.testing.assert_close(actual, wanted, **rough)
    assert [layout(tensor) for tensor in found] == [layout(tensor) for tensor in expected]
    assert shared(found, given) == shared(expected, given)


@pytest.mark.parametrize("name", ["moved", "half", "in place and new", "from nothing", "turned"])
def test_regions_write_the_values_of_pytorch(name, interpreted):
    for _, stretch in regions_of(UPDATES[name], *two_drawn(name)):
        region = stretch.region
        ours, expected = ([drawn(proxy).abs_().add_(1) for proxy in region.inputs] for _ in range(2))
        before = [tensor._version for tensor in ours]
        interpreted(there(region))([*ours])
        evaluate_region(region, tuple(expected))
        rough = {"rtol": 2**-6, "atol": 2**-6} if name == "half" else {}
        torch.testing.assert_close(ours, expected, **rough)
        writes = [proxy.name for proxy in region.writes]
        versions = [our._version - first for our, first in zip(ours, before, strict=True)]
        assert versions == [writes.count(proxy.name) for proxy in region.inputs]
        assert writes


def softmaxes(x, w):
    return (torch.nn.functional.softmax(x * 2, -1) + 1).tanh() * w, (x.sum(0) * 2).exp()


def normed(x, w):
    return torch.nn.functional.layer_norm(x, w.shape) * w + x, (x > 0).sum(-1, keepdim=True) * 2 + 1


def joined_rows(x, w):
    return torch.cat([x, (x * w).sin()], 0).relu() + 1, (x.t().contiguous() * 3).cos()


def masked_scores(x, w):
    places = torch.arange(x.shape[0], device=x.device)
    allowed = places[:, None] >= torch.arange(x.shape[1], device=x.device)[None]
    return torch.where(allowed, x, float("-inf")).exp() * w, (places * 2 + x.shape[0]).float().sqrt()


def product_and_more(x, w):
    return (torch.nn.functional.gelu(x @ x.t()) * 2 + 1).sum(-1).tanh()


SYMBOLIC = (softmaxes, normed, joined_rows, masked_scores, product_and_more)
SIZES = ((5, 33), (1, 33), (7, 1), (16, 16), (20, 70))


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # in lanes that a mask leaves out
@pytest.mark.parametrize("function", SYMBOLIC, ids=lambda function: function.__name__)
def test_one_region_serves_all_sizes(function, interpreted):
    """A region with symbolic sizes matches eager PyTorch at sizes that it was not compiled for."""
    regions = regions_of(function, torch.randn(5, 33), torch.randn(33), cache="symbolic values")
    for _, occurrence in regions:
        region = occurrence.region
        assert region.symbols
        run = interpreted(there(region))
        conditions = run.machine_code.conditions
        for sizes in SIZES:
            symbols = {proxy.value.node.expr: size for proxy, size in zip(region.symbols, sizes, strict=False)}
            named = {f"s{index}": size for index, size in enumerate(symbols.values())}
            assert all(size_of(condition, named) for condition in conditions), conditions
            size_of_call = partial(compute_size, values=symbols)
            given = [drawn(with_sizes(proxy, size_of_call)) for proxy in region.inputs]
            expected = evaluate_region(region, (*given, *symbols.values()))
            found = run([*given, *symbols.values()])
            for actual, expected_result in zip(found if isinstance(found, tuple) else (found,), expected, strict=True):
                torch.testing.assert_close(actual, expected_result, rtol=1e-4, atol=1e-5)
                assert layout(actual) == layout(expected_result)


def rounded_rows(x, w):
    scales = (x * w).abs().amax(-1, keepdim=True).clamp(min=1e-12) / 448
    codes = (x * w / scales).clamp(-448, 448).to(torch.float8_e4m3fn)
    return codes, scales, codes.float() * scales


@pytest.mark.skipif(not saturates_fp8(), reason="PyTorch rounds large numbers to NaN")
def test_rounding_to_8_bit_floats_is_part_of_a_region(interpreted, monkeypatch):
    monkeypatch.setattr(inductor, "rounds_to_fp8", lambda devices: True)
    monkeypatch.setattr(interpreter, "_convert_float", rounding(interpreter._convert_float))
    ((_, occurrence),) = regions_of(rounded_rows, torch.randn(6, 64), torch.randn(64))
    given = [drawn(proxy) for proxy in occurrence.region.inputs]
    expected, found = evaluate_region(occurrence.region, tuple(given)), interpreted(there(occurrence.region))([*given])
    codes, scales, values = sorted(found, key=lambda tensor: (tensor.itemsize, tensor.numel()))
    assert codes.dtype == torch.float8_e4m3fn
    torch.testing.assert_close(values, codes.float() * scales, rtol=1e-6, atol=0)
    for actual, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(actual.float(), wanted.float(), rtol=1e-6, atol=0)


@pytest.mark.parametrize(("target", "regions"), [("sm_90", True), ("sm_89", True), ("sm_80", False)])
def test_gpus_without_8_bit_floats_round_outside_of_regions(target, regions):
    with targeting(target):
        assert inductor.rounds_to_fp8({torch.device("cuda", 0)}) == (regions and saturates_fp8())
        assert not inductor.rounds_to_fp8({torch.device("cpu")})


def test_misaligned_tensors_are_written_to(monkeypatch):
    def region(args):
        copies.append(args[1].data_ptr() != odd.data_ptr())
        args.pop().add_(args.pop())

    monkeypatch.setattr(torch.cuda, "device", lambda index: contextlib.nullcontext())
    copies, odd = [], torch.zeros(9)[1:]
    launch.on_gpu(region, 0, (1,))([torch.ones(8), odd])
    assert copies == [True]
    assert odd.tolist() == [1.0] * 8


PROGRAM = """
import sys, torch, thunder_core as thunder
from pathlib import Path
from thunder_core.compilation.compiler import trace_for
from thunder_core.backend.fusion.machine_code import machine_code_of
from thunder_executors.inductor.launch import kernels_of
from thunder_executors.triton.cubin import inconsistencies

def layers(x, *weights):
    for weight in weights:
        x = x + torch.nn.functional.silu(torch.nn.functional.layer_norm(x, (64,)) @ weight) * 2.0
    return x

compiled = thunder.jit(layers, executors=("inductor", "torch"))
inputs = (torch.ones(8, 64, dtype=torch.bfloat16), *torch.ones(4, 64, 64, dtype=torch.bfloat16))
with torch.no_grad():
    program, _ = trace_for(compiled, torch.device("cuda"), inputs, {}, target="sm_90")
lines = [line for line in program.last("computation").bound_symbols if line.executor == "inductor"]
codes = {id(machine_code_of(line.symbol.target)): machine_code_of(line.symbol.target) for line in lines}
kernels = [kernel for code in codes.values() for kernel in kernels_of(code.library).values()]
assert all(inconsistencies(kernel.cubin) == [] and kernel.cubin.target == "sm_90" for kernel in kernels)
thunder.save(compiled, sys.argv[1])
names = sorted(path.suffix for path in Path(sys.argv[1], "kernels").iterdir())
print(len(lines), len(codes), len(kernels) > 1, set(names))
"""


def test_regions_are_compiled_for_a_gpu_that_is_not_here(tmp_path):
    """A separate process compiles, because the interpreter, which the tests have enabled, compiles nothing."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, (ROOT, ROOT / "executors", ROOT / "recipes")))
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))
    command = [sys.executable, str(tmp_path / "program.py"), str(tmp_path / "artifact")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    lines, regions, many, suffixes = done.stdout.split(" ", 3)
    assert int(regions) < int(lines)
    assert many == "True"
    assert suffixes.strip() in ("{'.cubins', '.py'}", "{'.py', '.cubins'}")


def projections(x, *weights):
    return tuple(torch.nn.functional.linear(x, weight) for weight in weights)


def mixed(x, first, second):
    return torch.nn.functional.silu(x @ first) * (x @ second) + x.reshape(8, 64).t().reshape(8, 64)


def heads(x, *weights):
    return tuple((x @ weight).view(8, 4, 16).transpose(0, 1) for weight in weights)


@pytest.mark.parametrize(("function", "count"), [(projections, 0), (heads, 0), (mixed, 1)])
def test_products_and_views_alone_are_no_region(function, count):
    """Nothing is compiled for them, because each product is a library call, for any view of its result."""
    compiled = thunder.jit(function, executors=(Takes(), "torch"))
    with torch.no_grad():
        compiled(torch.ones(8, 64), torch.ones(64, 64), torch.ones(64, 64))
    assert sum(line.executor == "takes" for line in thunder.last_traces(compiled)[-1].bound_symbols) == count


class Takes(FusionExecutor):
    """Takes every region, and runs the region's operations."""

    name = "takes"
    claims = "regions"

    def fuses(self, bsym):
        return True

    def compile(self, regions):
        return [Fused(lambda name, region=region: partial(self.run, region)) for region in regions]

    def run(self, region, *args):
        results = evaluate_region(region, args)
        return results[0] if len(results) == 1 else results


def test_library_calls_have_their_own_names():
    """`torch.mm` also has the name `torch.spmm`, which would be misleading."""
    names = ("mm", "addmm", "bmm", "baddbmm", "convolution", "_int_mm", "_scaled_mm")
    assert [wrapper._torch_name(f"extern_kernels.{name}") for name in names] == [f"torch.{name}" for name in names]


def test_the_interpreter_compiles_nothing():
    region = there(regions_of(*PROGRAMS["rotary"])[0][1].region)
    with targeting("sm_90"):
        (found,) = gpu.build([region])
    assert found == Refusal("Triton's interpreter is on, so nothing can be compiled", lasting=True)


def test_cached_facts_about_this_machine_are_restored_after_compiling_for_a_target():
    """PyTorch caches whether there is a GPU that Triton compiles for."""
    known = torch.utils._triton.has_triton()
    region = there(regions_of(*PROGRAMS["rotary"])[0][1].region)
    for target, count in (("sm_90", 132), ("sm_80", 108)):
        _, sources = gpu.generate(region, target)
        assert all(f"multi_processor_count={count}" in source for source in sources.values())
        assert sources
    assert torch.utils._triton.has_triton() == known


def test_properties_of_the_target_are_used_on_a_machine_with_another_gpu(monkeypatch):
    """The GPU of the machine does not leak into code for another GPU; code for its own GPU reads its properties."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (8, 0))
    monkeypatch.setattr(gpu, "architecture_here", lambda device: "sm_80")
    asked, device_patches = [], gpu.device_patches
    monkeypatch.setattr(gpu, "device_patches", lambda target: asked.append(target) or device_patches(target))
    region = there(regions_of(*PROGRAMS["rotary"])[0][1].region)
    _, sources = gpu.generate(region, "sm_90")
    assert asked == ["sm_90"]
    assert all("multi_processor_count=132" in source and "cc=90" in source for source in sources.values())


@pytest.mark.parametrize(
    ("target", "shared", "threads"), [("sm_90", 227, 2048), ("sm_86", 99, 1536), ("sm_120", 99, 1536)]
)
def test_properties_are_nvidias(target, shared, threads):
    """A block of a Hopper GPU has 227 KB of shared memory, and its L2 cache has 50 MB."""
    with contextlib.ExitStack() as stack:
        for patch in gpu.device_patches(target):
            stack.enter_context(patch)
        device = torch.cuda.get_device_properties(0)
    assert device.shared_memory_per_block_optin == shared * 1024
    assert device.max_threads_per_multi_processor == threads
    assert set(gpu.HARDWARE) == set(TARGETS)


def test_a_region_is_compiled_for_the_gpu_of_its_tensors(monkeypatch):
    """The second GPU of a machine may have another architecture than the current one."""
    capabilities, built = [(9, 0), (8, 0)], []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capabilities[device.index])
    monkeypatch.setattr(gpu, "build_region", lambda region, target, budget: built.append(target))
    first = there(regions_of(*PROGRAMS["rotary"])[0][1].region)
    second = elsewhere(first, torch.device("cuda", 1))
    assert (first.device, second.device) == (torch.device("cuda", 0), torch.device("cuda", 1))
    assert first.digest != second.digest
    gpu.build([first, second])
    assert built == ["sm_90", "sm_80"]
    asked = []
    monkeypatch.setattr(
        inductor, "compile_for_sizes", lambda regions, machine, builder: asked.append(machine) or list(regions)
    )
    assert inductor.EXECUTOR.compile([first, second]) == [first, second]
    assert [machine["hardware"] for machine in asked] == built
    assert inductor.rounds_to_fp8({first.device}) == saturates_fp8()
    assert not inductor.rounds_to_fp8({second.device})


def elsewhere(region, device):
    """Return a region with its inputs and outputs on another device."""
    inputs, outputs = ([replace(p, device=device) for p in proxies] for proxies in (region.inputs, region.outputs))
    return replace(region, inputs=tuple(inputs), outputs=tuple(outputs))


def test_kernels_survive_as_bytes():
    kind = Specialization("k", (("x", "*fp32"), ("n", "i32")), (), (), 4)
    cubins = [Cubin(kind, image, "k", 8, "sm_90", "triton") for image in (b"one", b"twotwo")]
    kernels = {str(number): launch.CubinLaunch(cubin, ("x", "n"), (7, 1, 1)) for number, cubin in enumerate(cubins)}
    found = launch.kernels_of(launch.library_of(kernels))
    assert {name: (kernel.cubin, kernel.arguments, kernel.grid) for name, kernel in found.items()} == {
        name: (kernel.cubin, kernel.arguments, kernel.grid) for name, kernel in kernels.items()
    }


@pytest.mark.parametrize(
    ("capabilities", "error"),
    [
        ([(8, 6)], "machine code for sm_90, and this machine's GPUs are sm_86"),
        ([(8, 6), (8, 0), (8, 6)], "machine code for sm_90, and this machine's GPUs are sm_86, sm_80"),
        ([(8, 6), (9, 0)], ""),
    ],
    ids=["one", "several", "the second runs them"],
)
def test_other_gpus_are_refused_by_name(monkeypatch, capabilities, error):
    """The program's GPU may be another than the current one."""
    kind = Specialization("k", (), (), (), 4)
    kernel = launch.CubinLaunch(Cubin(kind, b"one", "k", 8, "sm_90", "triton"), (), (1, 1, 1))
    library = launch.library_of({"k": kernel})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(capabilities))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=0: capabilities[device])
    with pytest.raises(ArtifactForeign, match=error) if error else contextlib.nullcontext():
        assert launch.kernels_of(library)["k"].cubin == kernel.cubin


def test_misaligned_tensors_are_copied():
    whole = torch.arange(64.0).reshape(4, 16)
    askew = whole[:, 1:9:2]
    found = launch.align_tensor(askew)
    assert found.data_ptr() % 16 == 0
    assert found.stride() == askew.stride()
    torch.testing.assert_close(found, askew)
    assert launch.align_tensor(whole) is whole


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_on_a_gpu_regions_compute_the_results_of_pytorch(name):
    function, *args = PROGRAMS[name]
    args = [tensor.cuda() for tensor in args]
    compiled = thunder.jit(function, executors=("inductor", "torch"))
    with torch.no_grad():
        found, expected = compiled(*args), function(*args)
    found, expected = [x if isinstance(x, tuple) else (x,) for x in (found, expected)]
    for actual, wanted in zip(found, expected, strict=True):
        rough = {"rtol": 2**-6, "atol": 2**-6} if actual.dtype in (torch.float16, torch.bfloat16) else {}
        torch.testing.assert_close(actual, wanted, **rough)
    assert [layout(result) for result in found] == [layout(result) for result in expected]
    assert shared(found, args) == shared(expected, args)
