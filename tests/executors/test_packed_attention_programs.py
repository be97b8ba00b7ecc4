"""Programs with the packed attention kernel: gradients, symbolic lengths, other vectors and artifacts."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import thunder_core as thunder
from tests.executors.kernel_choices import assert_equal_without_compiler
from tests.executors.packed_heads import EXECUTORS, KERNEL, LINEAR, SHAPES, Heads, attend, claimed_in, heads, in_double
from tests.executors.vectors import AVX2, WIDE
from thunder_core.backend.fusion.machine_code import extension
from thunder_core.foundation.errors import ArtifactForeign
from thunder_core.workflow.artifact.format import compatibility
from thunder_executors.packed_attention import EXECUTOR
from thunder_executors.packed_attention.attention import scale_bits
from thunder_executors.packed_attention.source import ARGUMENTS, NAME, source_of

pytestmark = pytest.mark.skipif(EXECUTOR.missing() is not None, reason=str(EXECUTOR.missing()))


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


def test_an_artifact_runs_in_a_process_without_compiler_or_cache(tmp_path):
    compiled, x = thunder.jit(Heads(), executors=EXECUTORS), torch.randn(2, 20, 64)
    assert_equal_without_compiler(compiled, x, "from tests.executors.packed_heads import Heads", "Heads()", tmp_path)
    assert claimed_in(compiled)


def test_an_artifact_is_refused_by_a_processor_that_lacks_its_instructions(tmp_path, monkeypatch):
    module = Heads()
    compiled = thunder.jit(module, executors=EXECUTORS)
    with torch.no_grad():
        compiled(torch.randn(2, 20, 64))
    thunder.save(compiled, tmp_path / "artifact")
    monkeypatch.setattr(compatibility, "instruction_sets", lambda: frozenset({"sse4_2"}))
    with pytest.raises(ArtifactForeign, match="avx2"):
        thunder.load(tmp_path / "artifact", module)


@pytest.mark.parametrize("vectors", [WIDE, AVX2], ids=["of 16 numbers", "of 8 numbers"])
def test_other_vectors_give_the_same_attention(vectors):
    from thunder_executors.inductor.building.compilers import compilers  # imports Inductor
    from thunder_executors.inductor.building.library import compile_library as compiled_library
    from thunder_executors.inductor.generate import CppKernel

    with compilers() as started:
        code = CppKernel(ARGUMENTS, source_of(vectors))
        compute = vars(extension(compiled_library({NAME: code}, started)))[NAME]
    torch.manual_seed(0)
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
