"""nvFuser's definitions compute PyTorch's results, and operations without a definition are refused."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
import torch
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

import thunder_core as thunder
from tests.executors.nvfuser import double
from thunder_core.backend.claiming.claim import claims_by_executor
from thunder_core.backend.fusion.fuse import Fused, Refusal
from thunder_core.backend.fusion.machine_code import MachineCode
from thunder_core.backend.fusion.partition import partition_into_regions
from thunder_core.backend.fusion.region import Region
from thunder_core.compilation.compiler import trace_for
from thunder_core.foundation import plugins
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_executors import nvfuser
from thunder_executors.nvfuser import EXECUTOR
from thunder_executors.nvfuser.definition import RULES, Unsupported, print_module


def norm(x, weight):
    x = x.float()
    return (weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))).to(torch.bfloat16), x.sum(0)


def rotary(x):
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    return x * x.cos() + turned * x.sin()


def gated(x):
    gate, up = x.chunk(2, -1)
    return functional.silu(gate) * up, functional.gelu(gate) - up, functional.gelu(up, approximate="tanh") + 1


def views(x):
    y = x.exp() + 1
    of_result = (y.t(), y.flatten(), y.unsqueeze(1).expand(8, 3, 16), y[0])
    of_input = (x.t(), x.view(2, 4, 16).transpose(1, 2))
    return y, *(view * 2 for view in (*of_result, *of_input))


def copies(x):
    y = x.exp() + 1
    return y.t().contiguous(), x.t().contiguous(), y * 2


def normalized(x, weight, bias):
    return (
        functional.layer_norm(x, (16,), weight, bias) * 2,
        functional.softmax(x, -1) + 1,
        functional.log_softmax(x, 0) * 3,
    )


def masked(x):
    return torch.where(x > 0, x, float("-inf")), x.masked_fill(x < 0, 0.5).clamp(max=1.0), x.clamp(-1, 1) * ~(x > 0)


def reduced(x):
    return (
        x.amax(-1) + x.amin(-1, keepdim=True).squeeze(-1),
        (x > 0).sum(0) * 2,
        x.var(1, correction=0) + x.mean(1),
        x.sum() + x.var(),
    )


def powers(x):
    y = x.abs() + 0.5
    return y.pow(0.5) + y.sqrt() + y.rsqrt() + y.reciprocal() + y.log() + y.log1p() + 2.0**x, 1 - x / 3.0, 1.0 / y


def waves(x):
    y = x.tanh() * 0.5
    return (
        y.sin() + y.cos() + y.tan() + y.asin() + y.acos() + y.atan() + y.sinh() + y.cosh(),
        y.erf() + y.sigmoid() + y.exp2(),
    )


def steps(x):
    return x.floor() + x.ceil() + x.trunc() + x.neg() + x.relu(), (x >= 0) & (x != 1) | (x <= -1), (x == 0) ^ x.isnan()


def widths(x, table):
    full = torch.full((16,), 2.0, device=x.device)
    return x.unsqueeze(0) + table, (x > 0).float() * table.sum(0), torch.ones_like(x) + full * x


def split(x):
    a, b, c = x.split([4, 4, 8], -1)
    return a * b + 1, c * 2 - c.mean(-1, keepdim=True), a + x[:, 2:6]


X = torch.randn(8, 16, generator=torch.Generator().manual_seed(1))
W = torch.rand(16, generator=torch.Generator().manual_seed(2))
PROGRAMS = {
    "norm": (norm, X.bfloat16(), W),
    "rotary": (rotary, X),
    "rotary of bfloat16": (rotary, X.bfloat16()),
    "gated": (gated, X),
    "gated of half": (gated, X.half()),
    "views": (views, X),
    "copies": (copies, X),
    "normalized": (normalized, X, W, W - 1),
    "normalized in bfloat16": (normalized, X.bfloat16(), W.bfloat16(), W.bfloat16()),
    "masked": (masked, X),
    "reduced": (reduced, X),
    "reduced half": (reduced, X.half()),
    "powers": (powers, X),
    "waves": (waves, X),
    "steps": (steps, X),
    "widths": (widths, X, torch.randn(3, 8, 16)[:1].sum(0)),
    "split": (split, X),
    "transposed": (rotary, torch.randn(16, 8).t()),
    "double": (powers, X.double()),
    "expanded": (rotary, W.expand(8, 16)),
}


@pytest.fixture
def stand_in(monkeypatch):
    monkeypatch.setitem(sys.modules, "nvfuser_direct", double.module())
    double.forget()
    double.FusionDefinition.made.clear()
    yield double.FusionDefinition
    double.forget()


def moved(proxies):
    return {p.name: replace(p, device=torch.device("cuda:0")) for p in proxies if isinstance(p, TensorProxy)}


def on_cuda(line):
    """The same line of a program whose tensors are on the GPU."""
    inner = [proxy for bsym in line.subsymbols for proxy in (*bsym.inputs, *bsym.outputs)]
    return line.rename(moved((*line.inputs, *line.outputs, *inner)))


class Elsewhere(nvfuser.Nvfuser):
    """The executor, for programs on the CPU as if they were on the GPU."""

    def fuses(self, bsym):
        return super().fuses(on_cuda(bsym))

    def compile(self, regions):
        return [Fused(MachineCode(print_module(there(region)), b"", ()).function) for region in regions]


def there(region):
    lines = tuple(on_cuda(line) for line in region.operations)
    return Region(tuple(moved(region.inputs).values()), lines, tuple(moved(region.outputs).values()))


def layout(tensor):
    return tensor.dtype, tensor.shape, [s for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1]


def shared(results, args):
    places = [tensor.untyped_storage().data_ptr() for tensor in (*args, *results)]
    return [places.index(place) for place in places]


def assert_alike(found, expected, args):
    """Check for the same numbers in the same layout with the same shared memory."""
    found, expected = [x if isinstance(x, tuple) else (x,) for x in (found, expected)]
    for actual, wanted in zip(found, expected, strict=True):
        rough = {"rtol": 2**-6, "atol": 2**-6} if args[0].dtype in (torch.float16, torch.bfloat16) else {}
        torch.testing.assert_close(actual, wanted, **rough)
    assert [layout(tensor) for tensor in found] == [layout(tensor) for tensor in expected]
    assert shared(found, args) == shared(expected, args)


@pytest.mark.parametrize("name", PROGRAMS)
def test_definitions_compute_the_results_of_pytorch(name, stand_in):
    function, *args = PROGRAMS[name]
    compiled = thunder.jit(function, executors=(Elsewhere(), "torch"))
    assert_alike(compiled(*args), function(*args), args)
    claims = claims_by_executor(thunder.last_traces(compiled)[-1])
    assert stand_in.made, "a region was built"
    assert claims["nvfuser"] > claims.get("torch", 0), claims


EXPECTED = """\
import torch
from thunder_executors.nvfuser.library import DataType, FusionDefinition, laid_out

with FusionDefinition() as fd:
    x0 = fd.define_tensor(sizes=[4, 8], strides=[8, 1], dtype=DataType.BFloat16, static_sizes=True)
    v0 = fd.ops.cast(fd.ops.silu(x0), dtype=DataType.BFloat16)
    v1 = fd.ops.cast(fd.ops.mul(v0, 2.0), dtype=DataType.BFloat16)
    fd.add_output(v1)


def region(x0):
    [v1] = fd.execute([x0])
    v1 = laid_out(v1, (8, 1))
    v2 = torch.ops.aten.t.default(v1)
    return v2
"""


def region_of(function, *args):
    compiled = thunder.jit(function)
    with torch.no_grad():
        compiled(*args)
    computation = next(t for t in thunder.last_traces(compiled) if t.made_by.startswith("drop"))
    return there(partition_into_regions(computation, Elsewhere().fuses, updates=False).occurrences[0][1].region)


def test_the_text_of_a_region():
    def function(x):
        return (functional.silu(x) * 2.0).t()

    assert print_module(region_of(function, torch.randn(4, 8).bfloat16())) == EXPECTED


REFUSED = {
    "products": lambda x: x @ x.t(),
    "random numbers": lambda x: torch.rand_like(x) + 1,
    "sorting": lambda x: x.sort(0)[0] + 1,
    "steps": lambda x: x[:, ::2] + 1,
    "rounding": lambda x: torch.div(x, 3, rounding_mode="floor"),
    "bytes": lambda x: x.to(torch.uint8) + 1,
    "nothing": lambda x: x[:0] + 1,
    "another dtype": lambda x: x.view(torch.int32),
}


@pytest.mark.parametrize("name", REFUSED)
def test_operations_that_nvfuser_lacks_are_left_to_other_executors(name):
    compiled = thunder.jit(REFUSED[name])
    compiled(X)
    lines = next(t for t in thunder.last_traces(compiled) if t.made_by.startswith("drop")).bound_symbols
    assert not all(Elsewhere().fuses(line) for line in lines)


def test_tensors_on_the_cpu_are_left_to_others():
    compiled = thunder.jit(lambda x: x.exp() + 1, executors=(EXECUTOR, "torch"))
    compiled(X)
    assert claims_by_executor(thunder.last_traces(compiled)[-1]) == {"torch": 2}


def test_error_of_a_definition_is_the_reason_of_the_refusal(stand_in, monkeypatch, capsys):
    def fail(*args):
        print("Exception occurred")
        raise RuntimeError("no scheduler takes it\nframe #0")

    region = region_of(lambda x: x.exp() + 1, X)
    monkeypatch.setattr(stand_in, "execute", fail)
    monkeypatch.setattr(nvfuser, "zeros", lambda region: [X])
    (found,) = EXECUTOR.compile([region])
    assert found == Refusal("nvFuser: RuntimeError: no scheduler takes it", lasting=True)
    assert capsys.readouterr().out == ""


def test_missing_nvfuser_is_reported_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(nvfuser.plugins, "is_installed", lambda package: False)
    monkeypatch.setattr(sys, "version_info", (3, 11, 7))
    reason = EXECUTOR.missing()
    assert "no CUDA GPU" in reason or torch.cuda.is_available()
    assert (
        "pip install nvfuser-cu130-torch210==0.2.36.dev20260301, under Python 3.12 (it has no wheels for 3.11)"
        in reason
    )
    monkeypatch.setattr(sys, "version_info", (3, 12, 1))
    assert EXECUTOR.missing().endswith("pip install nvfuser-cu130-torch210==0.2.36.dev20260301")


def test_a_package_that_does_not_load_is_reported(monkeypatch):
    broken = type(sys)("nvfuser_direct")
    monkeypatch.setitem(sys.modules, "nvfuser_direct", broken)
    double.forget()
    assert "nvfuser_direct cannot be loaded with PyTorch" in EXECUTOR.missing()


def test_every_rule_is_of_an_existing_operation():
    assert all(hasattr(torch.ops.aten, name) for name in RULES)


def test_a_llama_for_a_gpu_that_is_not_here_can_be_written():
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=100,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        program, _ = trace_for(thunder.jit(model), torch.device("cuda"), (), {"input_ids": torch.arange(16)[None]})
        trace = next(t for t in program.traces("computation") if t.made_by.startswith("drop"))
        found = partition_into_regions(trace, EXECUTOR.fuses, updates=False).occurrences
    assert all("fd.add_output" in print_module(one.region) for _, one in found)
    assert sum(len(places) for places, _ in found) > len(trace) / 2
    assert len({one.region.digest for _, one in found}) < len(found), "layers are equal"


def test_region_that_computes_nothing_is_refused_for_this_reason():
    region = region_of(*next(iter(PROGRAMS.values())))
    with pytest.raises(Unsupported, match="no operation for nvFuser reads an input"):
        print_module(Region(region.inputs, region.operations, region.inputs))


@pytest.mark.skipif(not plugins.is_installed("nvfuser_direct"), reason="needs nvfuser_direct")
@pytest.mark.parametrize("name", PROGRAMS)
def test_nvfuser_itself_takes_the_definitions(name):
    """Building a definition needs no GPU."""
    region = region_of(*PROGRAMS[name])
    namespace = {}
    exec(print_module(region), namespace)
    assert namespace["fd"].validate_definition() == (True, None)


@pytest.mark.gpu
@pytest.mark.skipif(EXECUTOR.missing() is not None, reason=str(EXECUTOR.missing()))
@pytest.mark.parametrize("name", PROGRAMS)
def test_on_a_gpu_regions_compute_the_results_of_pytorch(name):
    function, *args = PROGRAMS[name]
    args = [tensor.cuda() for tensor in args]
    compiled = thunder.jit(function, executors=(EXECUTOR, "torch"))
    assert_alike(compiled(*args), function(*args), args)
    assert claims_by_executor(thunder.last_traces(compiled)[-1]).get("nvfuser")
