"""Attention on the CPU runs the kernel: its values are PyTorch's for all shapes, masks and memory layouts."""

from __future__ import annotations

import math
import os

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import thunder_core as thunder
from tests.executors.vectors import AVX2, WIDE
from tests.processes import run_python
from thunder_core.backend.claiming.tuning import tuning
from thunder_core.backend.fusion.machine_code import extension
from thunder_core.foundation.errors import ArtifactForeign
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.workflow.artifact.format import compatibility
from thunder_core.workflow.pipeline.session.trace_stats import kernel_choices
from thunder_executors.inductor.building.kernel_library import KernelLibrary
from thunder_executors.packed_attention import EXECUTOR, PackedAttention, measurement
from thunder_executors.packed_attention.attention import scale_bits
from thunder_executors.packed_attention.kernel import ATTENTION_LIBRARY
from thunder_executors.packed_attention.measurement import Times
from thunder_executors.packed_attention.source import ARGUMENTS, NAME, source_of
from thunder_executors.packed_linear import PackedLinear

pytestmark = pytest.mark.skipif(EXECUTOR.missing() is not None, reason=str(EXECUTOR.missing()))
KERNEL, LINEAR = PackedAttention(measures=False), PackedLinear(measures=False)
EXECUTORS = (KERNEL, "torch")


class Heads(nn.Module):
    """Attention of an input to itself, in the module of this file."""

    def __init__(self, heads: int = 4, is_causal: bool = False):
        super().__init__()
        self.heads, self.is_causal = heads, is_causal

    def forward(self, x):
        batch, rows, width = x.shape
        heads = x.view(batch, rows, self.heads, width // self.heads).transpose(1, 2)
        result = scaled_dot_product_attention(heads, heads, heads, is_causal=self.is_causal)
        return result.transpose(1, 2).reshape(batch, rows, width)


Heads.__module__ = "tests.executors.test_packed_attention"


def claimed_in(compiled) -> list[BoundSymbol]:
    return [bsym for bsym in thunder.last_traces(compiled)[-1].bound_symbols if bsym.executor == "packed-attention"]


def heads(batch: int, count: int, rows: int, width: int) -> torch.Tensor:
    """Return a view [batch, heads, rows, width] of [batch, rows, heads * width]."""
    return torch.randn(batch, rows, count * width).view(batch, rows, count, width).transpose(1, 2)


def in_double(query, key, value, mask=None, **options):
    wide = mask.double() if mask is not None and mask.dtype.is_floating_point else mask
    return scaled_dot_product_attention(query.double(), key.double(), value.double(), wide, **options)


def attend(query, key, value, mask=None, **options):
    return scaled_dot_product_attention(query, key, value, attn_mask=mask, **options)


def assert_attention(query, key, value, mask=None, compiled=None, **options):
    """Check that attention is at most twice as far from float64 as PyTorch's, plus some ulps; return it."""
    compiled = compiled or thunder.jit(attend, executors=EXECUTORS)
    with torch.no_grad():
        found = compiled(query, key, value, mask, **options)
        eager = attend(query, key, value, mask, **options)
        exact = in_double(query, key, value, mask, **options)
    assert len(claimed_in(compiled)) == 1
    assert (found.shape, found.stride(), found.dtype) == (eager.shape, eager.stride(), eager.dtype)
    if found.numel():
        assert (found - exact).abs().max() <= 2 * (eager - exact).abs().max() + 2e-6 * exact.abs().max()
    return found


SHAPES = [
    (1, 1, 1, 1, 1, 1), (1, 2, 5, 7, 8, 8), (2, 3, 33, 40, 16, 16), (3, 2, 16, 16, 24, 24), (2, 2, 64, 64, 32, 32),
    (1, 3, 197, 197, 64, 64), (1, 2, 40, 300, 80, 72), (1, 1, 300, 700, 64, 64), (2, 1, 31, 600, 7, 5),
    (1, 2, 48, 17, 128, 33), (1, 1, 20, 30, 600, 300),
]  # fmt: skip
MASKS = {
    "none": lambda batch, heads, rows, keys: None,
    "boolean": lambda batch, heads, rows, keys: torch.rand(batch, 1, rows, keys) > 0.3,
    "boolean of keys": lambda batch, heads, rows, keys: torch.rand(batch, 1, 1, keys) > 0.3,
    "boolean of all": lambda batch, heads, rows, keys: (torch.rand(batch, 1, 1, keys) > 0.3).expand(-1, -1, rows, -1),
    "float": lambda batch, heads, rows, keys: torch.randn(rows, keys),
    "float of heads": lambda batch, heads, rows, keys: torch.randn(batch, heads, rows, keys),
    "float of rows": lambda batch, heads, rows, keys: torch.randn(heads, rows, 1),
    "transposed": lambda batch, heads, rows, keys: torch.randn(keys, rows).t(),
    "with gaps": lambda batch, heads, rows, keys: torch.randn(rows, 2 * keys)[:, ::2],
    "with infinities": lambda batch, heads, rows, keys: torch.randn(rows, keys).masked_fill(
        torch.rand(rows, keys) > 0.7, -math.inf
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_attention_of_every_shape_and_mask_matches_pytorch(shape):
    torch.manual_seed(0)
    batch, count, rows, keys, width, value_width = shape
    compiled = thunder.jit(attend, executors=EXECUTORS, cache="no caching")
    for mask in MASKS.values():
        tensors = 2 * heads(batch, count, rows, width), heads(batch, count, keys, width)
        assert_attention(
            *tensors, heads(batch, count, keys, value_width), mask(batch, count, rows, keys), compiled=compiled
        )


@pytest.mark.parametrize("shape", SHAPES)
def test_causal_attention_matches_pytorch(shape):
    torch.manual_seed(0)
    batch, count, rows, keys, width, value_width = shape
    for lengths in ((rows, keys), (keys, rows), (keys, keys)):
        query, key = (heads(batch, count, length, width) for length in lengths)
        assert_attention(2 * query, key, heads(batch, count, lengths[1], value_width), is_causal=True)


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("mask", ["none", "boolean", "float of heads"])
def test_groups_of_queries_share_keys_and_values(groups, mask):
    torch.manual_seed(0)
    query, key, value = heads(2, 6, 40, 16), heads(2, groups, 50, 16), heads(2, groups, 50, 16)
    assert_attention(query, key, value, MASKS[mask](2, 6, 40, 50), enable_gqa=True)
    assert_attention(query, key, value, is_causal=True, enable_gqa=True)


def repeat(x, repeats):
    """Repeat each head, as models of transformers do for attention with a mask."""
    batch, groups, keys, width = x.shape
    return x[:, :, None, :, :].expand(batch, groups, repeats, keys, width).reshape(batch, groups * repeats, keys, width)


def test_repeated_keys_and_values_are_read_without_the_copies():
    torch.manual_seed(0)

    def function(query, key, value, mask):
        return attend(query, repeat(key, 3), repeat(value, 3), mask)

    tensors = heads(2, 6, 40, 16), heads(2, 2, 50, 16), heads(2, 2, 50, 16), torch.rand(2, 1, 40, 50) > 0.3
    compiled = thunder.jit(function, executors=EXECUTORS)
    found = compiled(*tensors)
    torch.testing.assert_close(found, function(*tensors), rtol=1e-4, atol=1e-5)
    assert found.stride() == function(*tensors).stride()
    (call,) = claimed_in(compiled)
    assert len(call.subsymbols) == 7
    assert [bsym.symbol.name for bsym in thunder.last_traces(compiled)[-1].bound_symbols if not bsym.executor] == []


def test_copies_of_keys_that_are_read_elsewhere_are_made():
    def written(query, key, value):
        keys, values = repeat(key, 3), repeat(value, 3)
        key.add_(1)
        return attend(query, keys, values)

    def returned(query, key, value):
        keys = repeat(key, 3)
        return attend(query, keys, repeat(value, 3)), keys

    for function in (written, returned):
        tensors = heads(2, 6, 40, 16), heads(2, 2, 50, 16), heads(2, 2, 50, 16)
        expected = function(*(tensor.clone() for tensor in tensors))
        compiled = thunder.jit(function, executors=EXECUTORS)
        torch.testing.assert_close(compiled(*tensors), expected, rtol=1e-4, atol=1e-5)
        names = [bsym.symbol.name for bsym in thunder.last_traces(compiled)[-1].bound_symbols]
        assert names.count("torch.Tensor.reshape") == 2
        assert len(claimed_in(compiled)) == 1


@pytest.mark.parametrize("scale", [0.0, 1, 0.3, -0.5])
def test_scores_are_scaled(scale):
    assert_attention(heads(1, 2, 20, 16), heads(1, 2, 30, 16), heads(1, 2, 30, 16), scale=scale)


LAYOUTS = {
    "contiguous": lambda rows: torch.randn(2, 3, rows, 16),
    "of heads": lambda rows: heads(2, 3, rows, 16),
    "part of a product": lambda rows: torch.randn(2, rows, 9, 16)[:, :, 3:6].transpose(1, 2),
    "gaps in rows": lambda rows: torch.randn(2, 3, rows, 40)[..., 8:24],
    "rows first": lambda rows: torch.randn(rows, 2, 3, 16).permute(1, 2, 0, 3),
    "expanded": lambda rows: torch.randn(1, 1, rows, 16).expand(2, 3, -1, -1),
    "unaligned": lambda rows: torch.randn(2 * 3 * rows * 16 + 1)[1:].view(2, 3, rows, 16),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_tensors_are_read_where_they_are(name):
    torch.manual_seed(0)
    query, key, value = LAYOUTS[name](33), LAYOUTS[name](40), LAYOUTS[name](40)
    assert_attention(query, key, value)


@pytest.mark.parametrize("width", [8, 16, 128, 256])
def test_rows_that_collide_in_the_cache_are_copied(width):
    torch.manual_seed(0)
    count = 1024 // width
    tensors = (heads(1, count, rows, width) for rows in (40, 70, 70))
    assert_attention(*tensors, is_causal=True)


def test_three_dimensions_are_taken():
    torch.manual_seed(0)
    tensors = [torch.randn(3, rows, 16) for rows in (20, 30, 30)]
    assert_attention(*tensors)
    assert_attention(*tensors, torch.rand(20, 30) > 0.5)
    assert_attention(*tensors, is_causal=True)


@pytest.mark.parametrize("sizes", [(0, 2, 5, 7), (2, 2, 0, 7), (2, 2, 5, 0), (2, 2, 40, 0)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_empty_tensors_are_taken(sizes, is_causal):
    batch, count, rows, keys = sizes
    tensors = heads(batch, count, rows, 16), heads(batch, count, keys, 16), heads(batch, count, keys, 16)
    found = assert_attention(*tensors, is_causal=is_causal)
    assert torch.equal(found, torch.zeros_like(found))


@pytest.mark.parametrize("kind", ["boolean", "float"])
def test_rows_that_a_mask_hides_are_zeros(kind):
    mask = torch.rand(40, 300) > 0.5
    mask[7], mask[39], mask[5, :290] = False, False, False
    if kind == "float":
        mask = torch.zeros(40, 300).masked_fill(~mask, -math.inf)
    query, key, value = heads(1, 2, 40, 16), heads(1, 2, 300, 16), heads(1, 2, 300, 16)
    found = assert_attention(query, key, value, mask)
    for row in (7, 39):
        assert torch.equal(found[:, :, row], torch.zeros(1, 2, 16))


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("keys", [20, 600])
def test_infinite_and_missing_numbers_count_as_in_pytorch(number, keys):
    torch.manual_seed(0)
    for index in range(4):
        tensors = [heads(1, 2, 20, 16), heads(1, 2, keys, 16), heads(1, 2, keys, 16), torch.randn(20, keys)]
        tensors[index][..., 3, 5] = number
        found = thunder.jit(attend, executors=EXECUTORS)(*tensors)
        torch.testing.assert_close(found, in_double(*tensors).float(), equal_nan=True, rtol=1e-4, atol=1e-4)


def test_large_scores_do_not_overflow():
    query, key, value = 1e3 * heads(1, 2, 40, 16), 1e3 * heads(1, 2, 300, 16), heads(1, 2, 300, 16)
    exact = in_double(query, key, value)
    found = thunder.jit(attend, executors=EXECUTORS)(query, key, value)
    torch.testing.assert_close(found, exact.float(), rtol=1e-3, atol=1e-3)


def test_a_missing_key_behind_a_causal_mask_does_not_count():
    query, key, value = heads(1, 2, 40, 16), heads(1, 2, 40, 16), heads(1, 2, 40, 16)
    key[:, :, 39] = math.nan
    found = thunder.jit(attend, executors=EXECUTORS)(query, key, value, is_causal=True)
    torch.testing.assert_close(found[:, :, :39], attend(query, key, value, is_causal=True)[:, :, :39])
    assert found[:, :, 39].isnan().all()


def test_arguments_by_position_and_attention_of_a_tensor_to_itself_are_claimed():
    x = heads(1, 2, 20, 16)
    compiled = thunder.jit(lambda x: scaled_dot_product_attention(x, x, x, None, 0.0, True), executors=EXECUTORS)
    torch.testing.assert_close(compiled(x), attend(x, x, x, is_causal=True))
    assert len(claimed_in(compiled)) == 1


OTHERS = {
    "dropout": lambda q, k, v: scaled_dot_product_attention(q, k, v, dropout_p=1.0),
    "double": lambda q, k, v: scaled_dot_product_attention(q.double(), k.double(), v.double()),
    "bfloat16": lambda q, k, v: scaled_dot_product_attention(q.bfloat16(), k.bfloat16(), v.bfloat16()),
    "two dimensions": lambda q, k, v: scaled_dot_product_attention(q[0, 0], k[0, 0], v[0, 0]),
    "broadcast heads": lambda q, k, v: scaled_dot_product_attention(q, k[:, :1], v[:, :1]),
    "broadcast batch": lambda q, k, v: scaled_dot_product_attention(q, k[:1], v[:1]),
    "width in steps": lambda q, k, v: scaled_dot_product_attention(q[..., ::2], k[..., ::2], v[..., ::2]),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_attention_is_left_to_others(name):
    tensors = heads(2, 2, 20, 16), heads(2, 2, 30, 16), heads(2, 2, 30, 16)
    compiled = thunder.jit(OTHERS[name], executors=EXECUTORS)
    with torch.no_grad():
        torch.testing.assert_close(compiled(*tensors), OTHERS[name](*tensors), equal_nan=True)
    assert claimed_in(compiled) == []


def test_attention_that_autograd_records_is_left_to_others():
    x, seen = heads(1, 2, 20, 16).requires_grad_(), []

    def function(x):
        result = attend(x, x, x)
        result.register_hook(seen.append)
        return result

    compiled = thunder.jit(function, executors=EXECUTORS)
    compiled(x).sum().backward()
    assert claimed_in(compiled) == []
    assert len(seen) == 1


def test_training_step_has_the_gradients_of_pytorch():
    x = heads(1, 2, 20, 16).requires_grad_()
    compiled = thunder.jit(lambda x: attend(x, x, x, is_causal=True), executors=EXECUTORS)
    (found,) = torch.autograd.grad(compiled(x).square().sum(), [x])
    (expected,) = torch.autograd.grad(attend(x, x, x, is_causal=True).square().sum(), [x])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("is_causal", [False, True])
def test_a_single_program_serves_all_lengths(is_causal):
    module = Heads(is_causal=is_causal)
    compiled = thunder.jit(module, executors=EXECUTORS, symbolic={"x.size(0)": (1, 64), "x.size(1)": (1, 700)})
    with torch.no_grad():
        for batch, rows in ((3, 17), (1, 1), (2, 64), (5, 3), (1, 700), (64, 2)):
            x = torch.randn(batch, rows, 64)
            torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-5)
    assert len(claimed_in(compiled)) == 1
    assert thunder.cache_misses(compiled) == 1


def test_a_mask_of_symbolic_sizes_is_read():
    def function(x, mask):
        return attend(x, x, x, mask)

    sizes = {"x.size(2)": (2, 300), "mask.size(2)": (2, 300), "mask.size(3)": (2, 300)}
    compiled = thunder.jit(function, executors=EXECUTORS, symbolic=sizes)
    for rows in (17, 5, 200):
        x, mask = torch.randn(2, 3, rows, 16), torch.rand(2, 1, rows, rows) > 0.3
        torch.testing.assert_close(compiled(x, mask), function(x, mask), rtol=1e-4, atol=1e-5)
    assert len(claimed_in(compiled)) == 1


def test_equal_attention_is_one_kernel():
    model = nn.Sequential(*[Heads() for _ in range(3)])
    compiled = thunder.jit(model, executors=EXECUTORS)
    compiled(torch.randn(2, 20, 64))
    assert len(claimed_in(compiled)) == 3
    assert len({bsym.symbol for bsym in claimed_in(compiled)}) == 1


@pytest.mark.parametrize("is_causal", [False, True])
def test_results_are_equal_bit_by_bit_for_every_number_of_threads(is_causal):
    compiled, x = thunder.jit(Heads(is_causal=is_causal), executors=EXECUTORS), torch.randn(3, 300, 256)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(compiled(x))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(result, results[0]) for result in results)


LOADS = """
import sys, torch
import thunder_core as thunder
from tests.executors.test_packed_attention import Heads
x, expected = torch.load(sys.argv[2])
loaded = thunder.load(sys.argv[1], Heads(), strict=True)
with torch.no_grad():
    assert torch.equal(loaded(x), expected)
assert "torch._inductor.compile_fx" not in sys.modules
print("equal")
"""


def test_an_artifact_runs_in_a_process_without_compiler_or_cache(tmp_path):
    compiled, x = thunder.jit(Heads(), executors=EXECUTORS), torch.randn(2, 20, 64)
    with torch.no_grad():
        torch.save((x, compiled(x)), tmp_path / "values.pt")
    assert claimed_in(compiled)
    thunder.save(compiled, tmp_path / "artifact")
    places = {**os.environ, "CXX": "/bin/false", "THUNDER_CACHE_DIR": str(tmp_path / "empty")}
    done = run_python("-c", LOADS, tmp_path / "artifact", tmp_path / "values.pt", env=places)
    assert done.stdout == "equal\n", done.stderr


def test_an_artifact_is_refused_by_a_processor_that_lacks_its_instructions(tmp_path, monkeypatch):
    module = Heads()
    compiled = thunder.jit(module, executors=EXECUTORS)
    with torch.no_grad():
        compiled(torch.randn(2, 20, 64))
    thunder.save(compiled, tmp_path / "artifact")
    monkeypatch.setattr(compatibility, "instruction_sets", lambda: frozenset({"sse4_2"}))
    with pytest.raises(ArtifactForeign, match="avx2"):
        thunder.load(tmp_path / "artifact", module)


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """A cache that contains the compiled kernel and no measurements."""
    content = ATTENTION_LIBRARY.content
    monkeypatch.setenv("THUNDER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("THUNDER_TUNE", "10s")
    monkeypatch.setattr(KernelLibrary, "content", content)


def measured_as(monkeypatch, own: float, library: float) -> list[str]:
    """Make measurements return these seconds, and return the list of measured attention."""
    titles: list[str] = []

    def measure(attention, _function):
        titles.append(attention.title)
        return Times(own, library)

    monkeypatch.setattr(measurement, "measure", measure)
    return titles


def compiled_heads(**options):
    compiled = thunder.jit(Heads(**options), executors=(PackedAttention(), "torch"))
    with torch.no_grad():
        compiled(torch.randn(2, 20, 64))
    return compiled


def refused_by_kernel(compiled) -> list[tuple[str, int]]:
    refused = thunder.last_traces(compiled)[-1].refused
    return [(refusal.reason, refusal.count) for refusal in refused if refusal.executor == KERNEL.name]


def test_the_faster_kernel_is_chosen_and_its_times_are_kept(own_cache, monkeypatch):
    titles = measured_as(monkeypatch, 1e-3, 2e-3)
    (choice,) = kernel_choices(thunder.last_traces(compiled_heads(is_causal=True))[-1])
    assert titles == ["2 x 4 x 20 x 16 to 20 keys, causal"]
    assert choice.choice == (
        "2 x 4 x 20 x 16 to 20 keys, causal: packed-attention 1.00 ms, "
        "torch.nn.functional.scaled_dot_product_attention 2.00 ms"
    )
    compiled_heads(is_causal=True)
    assert len(titles) == 1


def test_pytorch_computes_unless_the_kernel_is_clearly_faster(own_cache, monkeypatch):
    measured_as(monkeypatch, 0.98e-3, 1e-3)
    compiled = compiled_heads()
    assert claimed_in(compiled) == []
    ((reason, count),) = refused_by_kernel(compiled)
    assert reason.startswith("PyTorch computes attention of 2 x 4 x 20 x 16 to 20 keys: packed-attention ")
    assert count == 1


def test_a_kernel_that_computes_other_values_is_not_chosen(own_cache, monkeypatch):
    monkeypatch.setattr(KernelLibrary, "function", lambda self, name: lambda *args: args[4].zero_())
    ((reason, _),) = refused_by_kernel(compiled_heads())
    assert "with other values" in reason


def test_nothing_is_measured_without_a_tuning_budget(own_cache, monkeypatch):
    titles = measured_as(monkeypatch, 1e-3, 2e-3)
    with tuning(0):
        compiled = compiled_heads()
    assert (titles, claimed_in(compiled), refused_by_kernel(compiled)) == ([], [], [])
    with tuning(1e-9):
        compiled = compiled_heads()
    assert (titles, claimed_in(compiled)) == ([], [])
    assert refused_by_kernel(compiled) == [("it was not measured in the time that --tune allows", 1)]


MEASURED = {
    "small": lambda: (heads(1, 1, 1, 1), heads(1, 1, 1, 1), None, {}),
    "masked": lambda: (heads(2, 4, 30, 16), heads(2, 4, 40, 16), torch.rand(2, 1, 1, 40) > 0.5, {}),
    "with a float mask": lambda: (heads(2, 4, 30, 16), heads(2, 4, 40, 16), torch.randn(30, 40), {"scale": 0.3}),
    "grouped": lambda: (heads(2, 4, 30, 16), heads(2, 2, 40, 16), None, {"enable_gqa": True, "is_causal": True}),
    "large": lambda: (heads(8, 32, 1024, 64), heads(8, 32, 1024, 64), None, {}),
    "large and causal": lambda: (heads(2, 8, 2048, 64), heads(2, 8, 2048, 64), None, {"is_causal": True}),
}


@pytest.mark.parametrize("name", MEASURED)
def test_measurement_gives_times_near_its_estimate(name, monkeypatch):
    found = []
    monkeypatch.setattr(measurement, "cached_times", lambda *_: None)
    monkeypatch.setattr("thunder_executors.packed_attention.times_of", lambda attention, _: found.append(attention))
    query, key, mask, options = MEASURED[name]()
    compiled = thunder.jit(lambda *tensors: attend(*tensors, **options), executors=(PackedAttention(), "torch"))
    with torch.no_grad(), tuning(10):
        compiled(query, key, key, mask)
    (attention,) = found
    state = torch.random.get_rng_state()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        times = measurement.measure(attention, ATTENTION_LIBRARY.function(NAME))
    assert torch.equal(state, torch.random.get_rng_state())
    estimate = measurement.call_seconds(attention.hints)
    assert 0 < times.kernel < 10 * (estimate + 1e-5)
    assert 0 < times.library < 10 * (estimate + 1e-5)
    assert measurement.measuring_seconds(attention) < 1
    assert times.agrees


@pytest.mark.parametrize("vectors", [WIDE, AVX2], ids=["of 16 numbers", "of 8 numbers"])
def test_other_vectors_give_the_same_attention(vectors):
    from thunder_executors.inductor.building.compilers import compilers  # imports Inductor
    from thunder_executors.inductor.building.library import compile_library as compiled_library
    from thunder_executors.inductor.generate import CppKernel

    with compilers() as started:
        code = CppKernel(ARGUMENTS, source_of(vectors))
        compute = vars(extension(compiled_library({NAME: code}, started)))[NAME]
    for batch, count, rows, keys, width, value_width in SHAPES:
        for is_causal in (False, True):
            query, key = heads(batch, count, rows, width), heads(batch, count, keys, width)
            value, result = heads(batch, count, keys, value_width), torch.zeros(batch, count, rows, value_width)
            strides = [stride for tensor in (query, key, value, result) for stride in tensor.stride()[:3]]
            sizes = batch, count, count, rows, keys, width, value_width
            mask = torch.rand(rows, keys) > 0.3
            mask_strides = (0, 0, *mask.stride())
            kind = 0 if is_causal else 1
            rest = *mask_strides, kind, int(is_causal), scale_bits(0.2)
            compute(query, key, value, mask, result, *sizes, *strides, *rest)
            exact = in_double(query, key, value, None if is_causal else mask, is_causal=is_causal, scale=0.2)
            torch.testing.assert_close(result, exact.float(), rtol=1e-5, atol=1e-5)


def test_a_residual_addition_stays_with_its_norm_if_everything_around_it_is_claimed():
    """Regions end at library calls, and also at calls that an executor has claimed."""

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.linear = Heads(), nn.Linear(64, 64)
            self.norms = nn.ModuleList([nn.LayerNorm(64) for _ in range(2)])

        def forward(self, x):
            x = self.norms[0](x + self.attention(x))
            return self.norms[1](x + self.linear(x))

    model = nn.Sequential(nn.LayerNorm(64), *[Layer() for _ in range(4)])
    compiled, x = thunder.jit(model, executors=(LINEAR, KERNEL, "inductor", "torch")), torch.randn(2, 20, 64)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    bsyms = thunder.last_traces(compiled)[-1].bound_symbols
    assert [bsym.executor for bsym in bsyms if bsym.symbol.name == "torch.nn.functional.layer_norm"] == ["torch"]
    assert len([bsym for bsym in bsyms if bsym.executor == "inductor"]) == 8
