"""Products of experts on the CPU run the packed kernel: the values are PyTorch's for all groups of rows and layouts."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

import thunder_core as thunder
from tests.executors.expert_products import EXECUTORS, SHAPES, Experts, claimed_in, ends, even_ends, multiply
from tests.executors.kernel_choices import assert_equal_without_compiler
from tests.executors.vectors import AVX2, WIDE
from thunder_core.backend.fusion.machine_code import extension
from thunder_core.foundation.errors import ArtifactForeign
from thunder_core.workflow.artifact.format import compatibility
from thunder_executors.packed_experts import EXECUTOR
from thunder_executors.packed_experts.source import ARGUMENTS, NAME, source_of

pytestmark = pytest.mark.skipif(EXECUTOR.missing() is not None, reason=str(EXECUTOR.missing()))


def in_double(x, weights, offsets):
    """Return the products in double precision; rows of no group are zero."""
    result, start = torch.zeros(x.shape[0], weights.shape[1], dtype=torch.float64), 0
    for weight, end in zip(weights.double(), offsets.tolist(), strict=True):
        result[start:end] = x.double()[start:end] @ weight.T
        start = end
    return result


def assert_products(x, weights, offsets, compiled=None):
    """Check that the kernel's results are near those in double precision; return them."""
    compiled = compiled or thunder.jit(multiply, executors=EXECUTORS)
    with torch.no_grad():
        found, eager = compiled(x, weights, offsets), multiply(x, weights, offsets)
    assert (found.shape, found.stride(), found.dtype) == (eager.shape, eager.stride(), eager.dtype)
    scale = math.sqrt(x.shape[1])
    torch.testing.assert_close(found, in_double(x, weights, offsets).float(), rtol=1e-5, atol=1e-5 * scale)
    assert len(claimed_in(compiled)) == 1
    return found


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_of_every_shape_match_pytorch(shape):
    torch.manual_seed(0)
    rows, experts, depth, columns = shape
    assert_products(torch.randn(rows, depth), torch.randn(experts, columns, depth), even_ends(rows, experts))


GROUPS = {
    "one expert": (0, 0, 40, 40),
    "the first expert": (40, 40, 40, 40),
    "the last expert": (0, 0, 0, 40),
    "single rows": (1, 2, 3, 40),
    "unequal": (3, 3, 37, 40),
}


@pytest.mark.parametrize("name", GROUPS)
def test_experts_without_rows_are_skipped(name):
    torch.manual_seed(0)
    assert_products(torch.randn(40, 16), torch.randn(4, 24, 16), ends(*GROUPS[name]))


OTHER_GROUPS = {
    "decreasing": (10, 4, 20, 40),
    "beyond the rows": (10, 20, 30, 10**9),
    "negative": (-30, 20, -5, 40),
    "far below zero": (-(2**31), 10, 2**31 - 1, 40),
    "overlapping": (30, 5, 35, 40),
}


@pytest.mark.parametrize("name", OTHER_GROUPS)
def test_offsets_that_are_no_sums_of_lengths_are_slices_as_in_eager(name):
    torch.manual_seed(0)
    x, weights, offsets = torch.randn(40, 16), torch.randn(4, 24, 16), ends(*OTHER_GROUPS[name])
    with torch.no_grad():
        found = thunder.jit(multiply, executors=EXECUTORS)(x, weights, offsets)
        expected = multiply(x, weights, offsets)
    written = in_double(torch.ones_like(x), torch.ones_like(weights), offsets)[:, 0] > 0
    torch.testing.assert_close(found[written], expected[written], rtol=1e-4, atol=1e-4)


def test_rows_of_no_group_are_not_computed():
    """Their values are undefined, and NaN in deterministic mode, as in eager."""
    x, weights, offsets = torch.randn(40, 16), torch.randn(4, 24, 16), ends(3, 3, 8, 20)
    compiled = thunder.jit(multiply, executors=EXECUTORS)
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        with torch.no_grad():
            found, expected = compiled(x, weights, offsets), multiply(x, weights, offsets)
    finally:
        torch.use_deterministic_algorithms(before)
    assert expected[20:].isnan().all()
    torch.testing.assert_close(found, expected, equal_nan=True, rtol=1e-4, atol=1e-4)
    assert len(claimed_in(compiled)) == 1


def test_an_input_without_rows_is_taken():
    weights = torch.randn(4, 24, 16)
    for offsets in (ends(0, 0, 0, 0), ends(0, 0, 1, 5), ends(-1, 2, 0, 0)):
        assert assert_products(torch.randn(0, 16), weights, offsets).shape == (0, 24)


LAYOUTS = {
    "input in columns of a wider matrix": (lambda: torch.randn(40, 40)[:, 8:24], lambda: torch.randn(4, 24, 16)),
    "unaligned input": (lambda: torch.randn(40 * 16 + 1)[1:].view(40, 16), lambda: torch.randn(4, 24, 16)),
    "every second input row": (lambda: torch.randn(80, 16)[::2], lambda: torch.randn(4, 24, 16)),
    "padded weights": (lambda: torch.randn(40, 16), lambda: torch.randn(4, 24, 40)[..., 4:20]),
    "every second expert": (lambda: torch.randn(40, 16), lambda: torch.randn(8, 24, 16)[::2]),
    "one weight for all": (lambda: torch.randn(40, 16), lambda: torch.randn(1, 24, 16).expand(4, -1, -1)),
    "colliding rows": (lambda: torch.randn(40, 1024)[:, :16], lambda: torch.randn(4, 24, 16)),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_tensors_are_read_where_they_are(name):
    torch.manual_seed(0)
    x, weights = (make() for make in LAYOUTS[name])
    assert_products(x, weights, ends(19, 19, 21, 40))


OTHERS = {
    "bfloat16": lambda x, w, o: multiply(x.bfloat16(), w.bfloat16(), o),
    "columns first": lambda x, w, o: multiply(x.t().contiguous().t(), w, o),
    "weights by rows": lambda x, w, o: functional.grouped_mm(x, w.transpose(1, 2).contiguous(), offs=o),
    "padded results": lambda x, w, o: multiply(x, w[:, :22], o),
    "two matrices": lambda x, w, o: functional.grouped_mm(x.t(), x, offs=o),
    "no groups": lambda x, w, o: functional.grouped_mm(x.view(4, 10, 16), w.transpose(1, 2)),
    "offsets in steps": lambda x, w, o: multiply(x, w, o.repeat_interleave(2)[::2]),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_products_are_left_to_others(name):
    x, weights, offsets = torch.randn(40, 16), torch.randn(4, 24, 16), ends(10, 20, 20, 40)
    compiled = thunder.jit(OTHERS[name], executors=EXECUTORS)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, weights, offsets), OTHERS[name](x, weights, offsets))
    assert claimed_in(compiled) == []


def test_products_that_eager_refuses_raise_its_error():
    x, weights = torch.randn(40, 16), torch.randn(4, 24, 16)
    for offsets in (ends(10, 20, 40), torch.tensor([10, 20, 20, 40])):
        with pytest.raises(RuntimeError) as expected:
            multiply(x, weights, offsets)
        with pytest.raises(RuntimeError) as found:
            thunder.jit(multiply, executors=EXECUTORS)(x, weights, offsets)
        assert str(expected.value) in str(found.value)


def test_products_that_autograd_records_are_left_to_others():
    module, inputs, seen = Experts(), (torch.randn(40, 16), ends(10, 20, 20, 40)), []

    def function(inputs):
        result = module(inputs)
        result.register_hook(seen.append)
        return result

    compiled = thunder.jit(function, executors=EXECUTORS)
    compiled(inputs).square().sum().backward()
    assert claimed_in(compiled) == []
    assert len(seen) == 1


def test_training_step_has_the_gradients_of_pytorch():
    module, x, offsets = Experts(), torch.randn(40, 16, requires_grad=True), ends(10, 20, 20, 40)
    tensors = [x, module.weights]
    compiled = thunder.jit(module, executors=EXECUTORS)
    found = torch.autograd.grad(compiled((x, offsets)).square().sum(), tensors)
    expected = torch.autograd.grad(module((x, offsets)).square().sum(), tensors)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_a_single_program_serves_all_numbers_of_rows():
    torch.manual_seed(0)
    compiled = thunder.jit(multiply, executors=EXECUTORS, symbolic={"x.size(0)": (1, 700)})
    weights = torch.randn(4, 24, 16)
    for rows in (17, 1, 64, 700, 3):
        assert_products(torch.randn(rows, 16), weights, even_ends(rows, 4), compiled)
    assert thunder.cache_misses(compiled) == 1


def test_a_write_to_a_weight_has_an_effect_at_the_next_call():
    module, inputs = Experts(), (torch.randn(40, 16), ends(10, 20, 20, 40))
    compiled = thunder.jit(module, executors=EXECUTORS)
    with torch.no_grad():
        compiled(inputs)
        module.weights.data.mul_(-2)
        torch.testing.assert_close(compiled(inputs), module(inputs), rtol=1e-4, atol=1e-4)


def test_results_are_equal_bit_by_bit_for_every_number_of_threads():
    module, inputs = Experts(3, 300, 700), (torch.randn(90, 300), ends(5, 50, 90))
    compiled, before, results = thunder.jit(module, executors=EXECUTORS), torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            with torch.no_grad():
                results.append(compiled(inputs))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(result, results[0]) for result in results)


def test_an_artifact_runs_in_a_process_without_compiler_or_cache(tmp_path):
    compiled, inputs = thunder.jit(Experts(), executors=EXECUTORS), (torch.randn(40, 16), ends(10, 20, 20, 40))
    imports = "from tests.executors.expert_products import Experts"
    assert_equal_without_compiler(compiled, inputs, imports, "Experts()", tmp_path)
    assert claimed_in(compiled)


def test_an_artifact_is_refused_by_a_processor_that_lacks_its_instructions(tmp_path, monkeypatch):
    module = Experts()
    compiled = thunder.jit(module, executors=EXECUTORS)
    with torch.no_grad():
        compiled((torch.randn(40, 16), ends(10, 20, 20, 40)))
    thunder.save(compiled, tmp_path / "artifact")
    monkeypatch.setattr(compatibility, "instruction_sets", lambda: frozenset({"sse4_2"}))
    with pytest.raises(ArtifactForeign, match="avx2"):
        thunder.load(tmp_path / "artifact", module)


@pytest.mark.parametrize("vectors", [WIDE, AVX2], ids=["of 16 numbers", "of 8 numbers"])
def test_other_vectors_give_the_same_products(vectors):
    from thunder_executors.inductor.building.compilers import compilers  # imports Inductor
    from thunder_executors.inductor.building.library import compile_library as compiled_library
    from thunder_executors.inductor.generate import CppKernel

    with compilers() as started:
        code = CppKernel(ARGUMENTS, source_of(vectors))
        compute = vars(extension(compiled_library({NAME: code}, started)))[NAME]
    torch.manual_seed(0)
    for rows, experts, depth, columns in SHAPES:
        x, weights, offsets = torch.randn(rows, depth), torch.randn(experts, columns, depth), even_ends(rows, experts)
        result = torch.zeros(rows, columns)
        compute(x, weights, offsets, result, rows, depth, columns, experts, depth, depth, depth * columns)
        exact = in_double(x, weights, offsets).float()
        torch.testing.assert_close(result, exact, rtol=1e-5, atol=1e-5 * math.sqrt(depth))
