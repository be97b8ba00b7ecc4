"""Inductor's regions: each program's results, strides and shared memory are PyTorch's own; all are built at once."""

from __future__ import annotations

import errno
import os
import pathlib
import signal
import textwrap
import threading
import time

import pytest
import torch
from torch._inductor import config
from torch._inductor.exc import InductorError, InvalidCxxCompiler
from torch.nn import functional

import thunder_core as thunder
from tests.processes import run_python
from thunder_core.backend.cache import Key, Store
from thunder_core.backend.fusion.fuse import Fused, Refusal
from thunder_core.backend.fusion.machine_code import MachineCode, machine_code_of
from thunder_core.backend.fusion.partition import partition_into_regions
from thunder_core.backend.fusion.region import Region
from thunder_executors.inductor import EXECUTOR
from thunder_executors.inductor.build import build
from thunder_executors.inductor.building.vector_extension import vector_extension
from thunder_executors.inductor.generate import Unsupported, refusal_for
from thunder_executors.inductor.region_cache import REFUSAL, read
from thunder_executors.inductor.wrapper import print_module

pytestmark = pytest.mark.skipif(EXECUTOR.missing() is not None, reason="needs a C++ compiler")


def norm(x, weight):
    x = x.float()
    return (weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))).to(torch.bfloat16), x.sum(0)


def rotary(x):
    cos, sin = x.cos(), x.sin()
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    return x * cos + turned * sin


def views(x):
    y = x.exp() + 1
    return y, y.t(), y.flatten(), (x * 2)[:, ::2]


def passed_on(x):
    return x.t(), x.exp() + x


def integers(x):
    index = x.argmax(-1)
    return index, torch.div(index, 3, rounding_mode="floor") + index % 4, x > 0, (x > 0).sum()


def attention(x):
    q, k = x.unsqueeze(0).unsqueeze(0) * 2, x.unsqueeze(0).unsqueeze(0) + 1
    return functional.scaled_dot_product_attention(q, k, k, is_causal=True).exp() * 2


def lost(x):
    y = x * 2 + 1
    return functional.softmax(y, -1), functional.gelu(y, approximate="tanh"), functional.layer_norm(y, (y.shape[-1],))


def embedded(x, table):
    rows = (x.abs() * 3).long() % table.shape[0]
    return functional.embedding(rows, table) * 2, table[rows[0]] + 1, rows.cumsum(0) + 1


def masked(x):
    mask = torch.ones(x.shape[0], x.shape[0], dtype=torch.bool).tril()
    return torch.where(mask, 0.0, float("-inf")) + 0.0, x.masked_fill(x < 0, 0.5).clamp(max=1.0)


def nothing(x):
    return (x[:0].exp() + 1).sum(0), x[:0] * 2 + 1


def cached(x):
    keys = (x * 2).view(2, 4, 4, 4).transpose(1, 2)
    return torch.cat([torch.tensor([], device=x.device), keys], dim=-2), keys + 1


def turned(x):
    y = x[:, : x.shape[0]] * 2
    y.t_()
    return y.tanh() * 2 + torch.arange(y.shape[1], device=y.device)


def thin(x):
    batch = x.view(2, 4, 16)
    column, row = (batch[..., :1] + 1).exp(), batch.transpose(1, 2)[:, :1].sin() * 2
    return column, row, column.unsqueeze(1), row[:1].expand(1, -1, -1), x[:1].expand(1, 16) * 2 + 1


def scalar(x):
    return (x.mean() + 1).sqrt(), x.std() * 2 + 1


X = torch.randn(8, 16, generator=torch.Generator().manual_seed(1))
PROGRAMS = {
    "norm": (norm, X.bfloat16(), torch.rand(16)),
    "rotary": (rotary, X),
    "rotary of half": (rotary, X.half()),
    "views": (views, X),
    "passed on": (passed_on, X),
    "integers": (integers, X),
    "attention": (attention, X),
    "losses": (lost, X),
    "losses of float64": (lost, X.double()),
    "embedded": (embedded, X, torch.randn(7, 5)),
    "masked": (masked, X),
    "nothing": (nothing, X),
    "cached": (cached, X),
    "turned": (turned, X),
    "thin": (thin, X),
    "scalar": (scalar, X),
    "strided": (rotary, torch.randn(16, 32)[::2, ::2]),
    "expanded": (rotary, torch.randn(1, 16).expand(8, 16)),
}


def regions_of(function, *args, **options):
    """The regions of a program as the executor receives them, each with its input tensors."""
    compiled = thunder.jit(function, executors=("torch",), **options)
    with torch.no_grad():
        compiled(*args)
        computation = next(t for t in thunder.last_traces(compiled) if t.made_by.startswith("drop"))
        return partition_into_regions(computation, EXECUTOR.fuses, updates=EXECUTOR.updates).occurrences


@pytest.fixture(scope="module")
def built():
    """The first region of every program, compiled together."""
    found = {name: regions_of(*program)[0][1].region for name, program in PROGRAMS.items()}
    return dict(zip(found, zip(found.values(), build(list(found.values())), strict=True), strict=True))


@pytest.fixture
def cheap(monkeypatch, built):
    """A compiler that knows the regions that were built before, for whole programs."""
    known = {region.digest: Fused(result.function, empties=True) for region, result in built.values()}
    monkeypatch.setattr(
        type(EXECUTOR), "compile", lambda self, regions: [known[compiled_region.digest] for compiled_region in regions]
    )


def layout(tensor):
    return tensor.dtype, tensor.shape, tensor.stride() if tensor.numel() else ()


def shared(results, args):
    places = [tensor.untyped_storage().data_ptr() if tensor.numel() else object() for tensor in (*args, *results)]
    return [places.index(place) for place in places]


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_pytorchs_own(name, built, cheap):
    function, *args = PROGRAMS[name]
    assert isinstance(built[name][1], MachineCode), built[name][1]
    compiled = thunder.jit(function, executors=(EXECUTOR, "torch"))
    with torch.no_grad():
        found, expected = compiled(*args), function(*args)
    found, expected = [x if isinstance(x, tuple) else (x,) for x in (found, expected)]
    for actual, wanted in zip(found, expected, strict=True):
        rough = {"rtol": 2**-6, "atol": 2**-8} if actual.dtype in (torch.float16, torch.bfloat16) else {}
        torch.testing.assert_close(actual, wanted, **rough)
    assert [layout(tensor) for tensor in found] == [layout(tensor) for tensor in expected]
    assert shared(found, args) == shared(expected, args)


def test_output_of_inductor_that_cannot_be_saved_is_refused():
    with pytest.raises(Unsupported, match=r"calls os\.system"):
        print_module("def call(args):\n    os.system('true')\n    return ()\n", (), Region((), ()))
    with pytest.raises(Unsupported, match="contains an object of class Import"):
        print_module("def call(args):\n    import os\n    return ()\n", (), Region((), ()))


UPDATES = {
    "moved": lambda x, y: (x.mul_(0.9).add_(y, alpha=0.1), y.sub_(x.sqrt()))[2:],
    "half": lambda x, y: (x.mul_(y), x.add_(y))[2:],
    "rounded": lambda x, y: x.add_(y.double()).mul_(3).copy_(x.neg().half()),
    "in place and new": lambda x, y: (y.exp().add_(x).mul_(2), x.lerp_(y, 0.3), x * y)[::2],
    "from nothing": lambda x, y: (x.zero_(), x.add_(1), y.fill_(2.0), y.div_(3))[4:],
    "turned": lambda x, y: (x.add_(y), x.mul_(2), x.sub_(y))[3:],
}


def random_tensors(name):
    torch.manual_seed(0)
    x, y = torch.rand(12, 20) + 1, torch.rand(12, 20) + 1
    x = x.bfloat16() if name == "half" else x
    return (torch.rand(20, 12).add_(1).t() if name == "turned" else x), y


def test_updates_write_the_values_of_pytorch():
    def every(*pairs):
        return [update(*pair) for update, pair in zip(UPDATES.values(), pairs, strict=True)]

    ours, eager = [random_tensors(name) for name in UPDATES], [random_tensors(name) for name in UPDATES]
    compiled = thunder.jit(every, executors=("inductor", "torch"))
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(*ours), every(*eager), rtol=2**-6, atol=1e-5)
    torch.testing.assert_close(ours, eager, rtol=2**-6, atol=1e-5)
    assert [[tensor._version for tensor in pair] for pair in ours] == [
        [tensor._version for tensor in pair] for pair in eager
    ]
    lines = thunder.last_traces(compiled)[-1].bound_symbols
    assert [line.symbol.name for line in lines if line.mutates and line.executor != "inductor"] == []


def test_numbers_that_change_are_given_to_regions():
    def step(x, y, given):
        rate = given.item()
        y.mul_(rate).add_(x, alpha=1 - rate)
        x.addcdiv_(y, y.abs() + 1, value=-rate)
        x.lerp_(y, rate).sub_(y, alpha=rate)
        return x.addcmul(y, y, value=rate) / rate

    ours, eager = random_tensors("moved"), random_tensors("moved")
    compiled = thunder.jit(step, executors=("inductor", "torch"))
    with torch.no_grad():
        for rate in map(torch.tensor, (0.5, 0.25, 0.125, 0.75)):
            torch.testing.assert_close(compiled(*ours, rate), step(*eager, rate))
            torch.testing.assert_close(ours, eager)
    assert thunder.cache_misses(compiled) == 1
    lines = thunder.last_traces(compiled)[-2].bound_symbols
    (region,) = [line for line in lines if line.executor == "inductor"]
    assert len(region.inputs) == 5, "two tensors, and the rate in three forms"


def test_results_laid_out_otherwise_are_refused():
    """Inductor would return the last result without its gaps, which a program could see in the strides."""
    (_, one), *_ = regions_of(views, X.t())
    (result,) = build([one.region])
    assert isinstance(result, Refusal)
    assert "strides" in result.reason


def test_a_compiler_that_fails_leaves_the_region_to_others(tmp_path):
    script = tmp_path / "g++"
    script.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo "g++ 12" && exit\necho "kernels.cpp:1: error: no room" >&2\nexit 1\n'
    )
    script.chmod(0o755)
    region = regions_of(lambda x: x.exp() * 5 + 1, X)[0][1].region
    for compiler, said in ((str(script), "error: no room"), ("/bin/false", "No working C++ compiler")):
        with config.patch({"cpp.cxx": (None, compiler)}):
            (result,) = build([region])
        assert isinstance(result, Refusal)
        assert said in result.reason


VERSION = '#!/bin/sh\n[ "$1" = --version ] && echo "g++ 12" && exit\n'


def test_a_compiler_without_disk_space_is_run_once_for_all_regions(tmp_path):
    script = tmp_path / "g++"
    script.write_text(f'{VERSION}echo asked >> {tmp_path}/asked\necho "No space left on device" >&2\nexit 1\n')
    script.chmod(0o755)
    regions = [regions_of(function, X)[0][1].region for function in (lambda x: x.exp() * 6, lambda x: x.sin() * 6)]
    vector_extension()  # reads the flags from the compiler, once in a process
    with config.patch({"cpp.cxx": (None, str(script))}):
        results = build(regions)
    assert all("No space left on device" in result.reason and not result.lasting for result in results)
    assert (tmp_path / "asked").read_text() == "asked\n"


def test_regions_are_left_to_other_executors_if_no_file_can_be_written(tmp_path, monkeypatch):
    regions = [regions_of(lambda x: x.exp() * 7, X)[0][1].region]

    def full(self, content):
        raise OSError(errno.EFBIG, "File too large")

    monkeypatch.setattr(pathlib.Path, "write_text", full)
    (result,) = build(regions)
    assert isinstance(result, Refusal)
    assert not result.lasting


def test_ctrl_c_ends_the_compiler_and_all_that_it_has_started(tmp_path):
    script, started = tmp_path / "g++", tmp_path / "started"
    script.write_text(f"{VERSION}sleep 60 &\necho $$ > {started}.new\nmv {started}.new {started}\nsleep 60\n")
    script.chmod(0o755)
    region = regions_of(lambda x: x.exp() * 8, X)[0][1].region
    interrupted = []

    def interrupt():
        while not started.exists():
            time.sleep(0.01)
        interrupted.append(time.monotonic())
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    vector_extension()
    thread = threading.Thread(target=interrupt)
    with config.patch({"cpp.cxx": (None, str(script))}), pytest.raises(KeyboardInterrupt):
        thread.start()
        build([region])
    assert time.monotonic() - interrupted[0] < 1
    thread.join()
    group = int(started.read_text())
    with pytest.raises(ProcessLookupError):
        for _ in range(100):  # a killed process exists until the system has removed it
            os.killpg(group, 0)
            time.sleep(0.02)


def test_an_artifact_runs_without_a_compiler(tmp_path):
    """Machine code is saved: another process needs neither a compiler nor Inductor to run it."""
    script = textwrap.dedent(
        """
        import sys, torch, thunder_core as thunder

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                torch.manual_seed(0)
                self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(4))

            def forward(self, x):
                for layer in self.layers:
                    x = x + torch.nn.functional.silu(layer(x)) * 2.0
                return x

        model, x = Model(), torch.arange(24.0).reshape(3, 8) / 24
        sys.modules["models"] = sys.modules["__main__"]
        Model.__module__ = "models"
        torch.set_grad_enabled(False)
        if sys.argv[1] == "save":
            compiled = thunder.jit(model, executors=("inductor", "torch"))
            compiled(x)
            thunder.save(compiled, sys.argv[2])
        else:
            compiled = thunder.load(sys.argv[2], model, strict=True)
            torch.testing.assert_close(compiled(x), model(x))
            assert "region_0" in str(thunder.last_traces(compiled)[-1])
            assert "torch._inductor.compile_fx" not in sys.modules
        """
    )
    (tmp_path / "run.py").write_text(script)
    without = {**os.environ, "CXX": "/bin/false", "THUNDER_CACHE_DIR": str(tmp_path / "empty")}
    saved = run_python(tmp_path / "run.py", "save", tmp_path / "artifact")
    assert saved.returncode == 0, saved.stderr
    told = run_python(tmp_path / "run.py", "load", tmp_path / "artifact", env=without)
    assert told.returncode == 0, told.stderr


def test_a_region_keeps_its_machine_code(built):
    (_, result) = built["norm"]
    code = machine_code_of(result.function("region_7"))
    assert code is result
    assert code.library.startswith(b"\x7fELF")
    assert "avx2" in code.needs or not code.needs
    assert "def region(" in code.text
    assert "inductor" not in code.text


@pytest.mark.parametrize(
    ("error", "lasting"),
    [
        (InvalidCxxCompiler(), False),
        (InductorError(InvalidCxxCompiler(), None), False),
        (InductorError(OSError(28, "No space left on device"), None), False),
        (MemoryError(), False),
        (InductorError(NotImplementedError("no such lowering"), None), True),
        (InductorError(AssertionError("a bug of Inductor's"), None), True),
        (AssertionError("of this process, perhaps of two threads in it"), False),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_refusals_are_remembered_only_if_the_region_is_the_cause(error, lasting):
    assert refusal_for(error).lasting is lasting


def test_a_cached_refusal_is_lasting(tmp_path):
    key = Key("inductor", {"region": "0"})
    store = Store(tmp_path / "cache")
    entry = store.get_or_build(key, lambda folder: (folder / REFUSAL).write_bytes(b"it holds constants"), "a region")
    assert read(entry) == Refusal("it holds constants", lasting=True)
