"""The packed linear kernel multiplies bfloat16, float16, int8 and int4 exactly and rounds once."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import linear

import thunder_core as thunder
from tests.executors.packed_layers import EXECUTORS, Layer, claimed_in, in_double
from tests.executors.vectors import AVX2, WIDE
from thunder_core.backend.fusion.machine_code import extension
from thunder_core.backend.quantization.integers import BLOCK
from thunder_core.backend.quantization.products import IMPLEMENTATIONS, int4_rows
from thunder_executors.packed_linear import EXECUTOR
from thunder_executors.packed_linear.activations import GELU, GELU_TANH, RELU, SILU
from thunder_executors.packed_linear.measurement import Times
from thunder_executors.packed_linear.product_kinds import KINDS, LINEAR, ProductKind
from thunder_executors.packed_linear.source import ARGUMENTS, NAME, source_of

pytestmark = pytest.mark.skipif(EXECUTOR.missing() is not None, reason=str(EXECUTOR.missing()))


@pytest.mark.parametrize("dtype", [torch.float64])
def test_other_dtypes_are_left_to_others(dtype):
    layer, x = Layer().to(dtype), torch.randn(20, 48, dtype=dtype)
    compiled = thunder.jit(layer, executors=EXECUTORS)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), layer(x))
    assert claimed_in(compiled) == []


def test_autocast_is_left_to_others():
    layer, x = Layer(), torch.randn(20, 48)
    compiled = thunder.jit(layer, executors=EXECUTORS)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        found, expected = compiled(x), layer(x)
    assert found.dtype is torch.bfloat16
    torch.testing.assert_close(found, expected)
    assert claimed_in(compiled) == []


def operands_of(kind: ProductKind, rows: int, depth: int, columns: int, extra: bool = True) -> tuple[torch.Tensor, ...]:
    """Return random operands of a product; integers have all values of 8 bits."""

    def numbers(*shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.randn(shape).to(dtype) if dtype.is_floating_point else torch.randint(-128, 128, shape, dtype=dtype)

    x = numbers(rows, depth, dtype=kind.input)
    if kind.in_groups:
        codes = torch.randint(0, 256, (-(-columns // BLOCK), depth, BLOCK // 2), dtype=torch.uint8)
        return x, codes, numbers(math.gcd(depth, 4), columns, 2, dtype=kind.extra)
    weight = numbers(columns, depth, dtype=kind.weight)
    return (x, weight, numbers(columns, dtype=kind.extra)) if kind.extra and (extra or kind.scales) else (x, weight)


def exact_product(kind: ProductKind, x, weight, extra=None):
    """Return a product in float64, or in int64 of integers."""
    wide = torch.float64 if kind.result.is_floating_point else torch.int64
    if kind.in_groups:
        return x.to(wide) @ int4_rows(weight, extra, 0, extra.shape[1], wide).t()
    product = x.to(wide) @ weight.to(wide).t()
    if extra is None:
        return product
    return product * extra.double() if kind.scales else product + extra.double()


def assert_exact(kind: ProductKind, found, operands) -> None:
    """Check that a result is the exact one, rounded once to its dtype after sums in float32."""
    exact, depth = exact_product(kind, *operands), operands[0].shape[1]
    assert found.dtype == kind.result
    if kind.result == torch.int32:
        assert torch.equal(found.long(), exact)
        return
    size = largest_sum(kind, *operands) / max(depth, 1) ** 0.5
    difference = (found.double() - exact).abs()
    assert (difference <= 0.51 * torch.finfo(kind.result).eps * exact.abs() + 1e-5 * size).all()


def largest_sum(kind: ProductKind, x, weight, extra=None):
    """Return the largest sum of the absolute products of a product."""
    if kind.in_groups:
        return (x.abs().double() @ int4_rows(weight, extra, 0, extra.shape[1], torch.float64).abs().t()).max()
    return exact_product(kind, *(operand.abs() for operand in (x, weight, extra) if operand is not None)).max()


def program_of(kind: ProductKind):
    """Return a function of the operands that has the operation of a kind of products."""
    assert kind.operation == LINEAR or kind.operation.rpartition(".")[2] in IMPLEMENTATIONS
    return lambda *operands: kind.function(*operands)


NARROW = KINDS[1:]
IDS = [kind.description for kind in NARROW]
IN_ROWS = [pytest.param(kind, id=kind.description) for kind in NARROW if not kind.in_groups]


@pytest.mark.parametrize("kind", NARROW, ids=IDS)
@pytest.mark.parametrize("rows", [1, 2, 3, 8, 16, 17, 23, 101])
def test_narrow_numbers_are_multiplied_exactly_and_rounded_once(kind, rows):
    torch.manual_seed(rows)
    compiled = thunder.jit(program_of(kind), executors=EXECUTORS, cache="no caching")
    for depth, columns in ((1, 1), (7, 5), (33, 31), (64, 48), (1025, 33), (1300, 48)):
        for extra in (False, True):
            operands = operands_of(kind, rows, depth, columns, extra)
            with torch.no_grad():
                assert_exact(kind, compiled(*operands), operands)
            assert len(claimed_in(compiled)) == 1


@pytest.mark.parametrize("kind", IN_ROWS)
def test_narrow_rows_with_gaps_are_read_without_a_copy(kind):
    x, weight, *extra = operands_of(kind, 20, 96, 24)
    x = x[::2, 32:64]
    weight = weight[:, 8:40]
    compiled = thunder.jit(program_of(kind), executors=EXECUTORS)
    with torch.no_grad():
        assert_exact(kind, compiled(x, weight, *extra), (x, weight, *extra))
    assert len(claimed_in(compiled)) == 1


@pytest.mark.parametrize("kind", NARROW, ids=IDS)
def test_a_narrow_weight_that_is_written_to_counts_at_the_next_call(kind):
    operands = operands_of(kind, 20, 32, 24)
    compiled = thunder.jit(program_of(kind), executors=EXECUTORS)
    with torch.no_grad():
        before = compiled(*operands)
        operands[1].data[..., 3] = 7
        assert_exact(kind, compiled(*operands), operands)
    assert not torch.equal(before, compiled(*operands))


@pytest.mark.parametrize("kind", NARROW, ids=IDS)
def test_a_single_program_serves_every_number_of_narrow_rows(kind):
    compiled = thunder.jit(program_of(kind), executors=EXECUTORS, symbolic={"operands[0].size(0)": (1, 64)})
    _, *others = operands_of(kind, 1, 48, 33)
    for rows in (5, 1, 17, 64, 2):
        x, *_ = operands_of(kind, rows, 48, 1)
        with torch.no_grad():
            assert_exact(kind, compiled(x, *others), (x, *others))
    assert len(claimed_in(compiled)) == 1
    assert thunder.cache_misses(compiled) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_infinite_and_missing_narrow_numbers_stay_in_their_rows_and_columns(dtype):
    x, weight = torch.randn(20, 32, dtype=dtype), torch.randn(37, 32, dtype=dtype)
    x[3, 5], x[7, 0], weight[36, 31] = float("inf"), float("nan"), float("-inf")
    if dtype == torch.float16:
        x[11], weight[20] = torch.finfo(dtype).max, 1.0  # their product is rounded to infinity
    for rows in (20, 8):
        found = thunder.jit(linear, executors=EXECUTORS)(x[:rows], weight)
        exact = in_double(x[:rows], weight).to(dtype)
        torch.testing.assert_close(found, exact, equal_nan=True, rtol=0.02, atol=0.02)


def test_mixed_dtypes_are_left_to_others():
    function = program_of(next(kind for kind in KINDS if kind.scales))
    operands = torch.randn(20, 32).double(), torch.randint(-128, 128, (24, 32), dtype=torch.int8), torch.rand(24)
    compiled = thunder.jit(function, executors=EXECUTORS)
    torch.testing.assert_close(compiled(*operands), function(*operands))
    assert claimed_in(compiled) == []


def test_a_bias_of_one_number_is_left_to_others():
    operands = torch.randn(20, 32), torch.randn(24, 32), torch.randn(1)
    compiled = thunder.jit(linear, executors=EXECUTORS)
    torch.testing.assert_close(compiled(*operands), linear(*operands))
    assert claimed_in(compiled) == []


@pytest.mark.filterwarnings("ignore::thunder_core.errors.DegradedWarning")  # processors differ
@pytest.mark.parametrize("recipe", ["int8-dynamic", "int8-weight-only", "int4-weight-only", "bf16"])
def test_quantized_layers_run_the_kernel(recipe, monkeypatch):
    monkeypatch.setenv("THUNDER_TUNE", "10s")
    monkeypatch.setattr("thunder_executors.packed_linear.times_of", lambda *_: Times(1e-3, 2e-3))
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 48)).eval()
    compiled = thunder.compile(model, ["default", recipe])
    for rows in (2, 40):
        x = torch.randn(rows, 64)
        with torch.no_grad():
            found, expected = compiled(x), model(x)
        assert (found - expected).norm() < (0.15 if recipe == "int4-weight-only" else 0.03) * expected.norm()
    assert len(claimed_in(compiled)) == 2


def test_training_in_bfloat16_has_the_gradients_of_pytorch():
    model, x = Layer().bfloat16(), torch.randn(20, 48, dtype=torch.bfloat16)
    compiled = thunder.jit(model, executors=EXECUTORS)
    found = torch.autograd.grad(compiled(x).sum(), [*model.parameters()])
    expected = torch.autograd.grad(model(x).sum(), [*model.parameters()])
    for actual, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=0.02, atol=0.02)


# Rows, depth and columns: each number of rows for which dot products differ, rows that stay in the cache and others.
SHAPES = (
    *((rows, depth, 50) for rows in range(1, 17) for depth in (40, 1100)),
    *((17, 520, 32), (27, 16, 70), (31, 1100, 33), (60, 64, 31)),
)


@pytest.mark.parametrize("vectors", [WIDE, AVX2], ids=["of 16 numbers", "of 8 numbers"])
@pytest.mark.parametrize("kind", KINDS, ids=["in float32", *IDS])
def test_tiles_of_other_vectors_give_the_same_product(kind, vectors):
    from thunder_executors.inductor.building.compilers import compilers  # imports Inductor
    from thunder_executors.inductor.building.library import compile_library as compiled_library
    from thunder_executors.inductor.generate import CppKernel

    with compilers() as started:
        code = CppKernel(ARGUMENTS, source_of(kind.type, vectors))
        multiply = vars(extension(compiled_library({NAME: code}, started)))[NAME]
    for rows, depth, columns in SHAPES:
        operands = operands_of(kind, rows, depth, columns)
        result = torch.zeros(rows, columns, dtype=kind.result)
        stride = depth // len(operands[-1]) if kind.in_groups else depth
        sizes = rows, depth, columns, depth, stride, int(len(operands) > 2)
        multiply(*operands[:2], operands[-1], result, *sizes, 0)
        assert_exact(kind, result, operands)
        for activation in (RELU, SILU, GELU, GELU_TANH) if kind.result == torch.float32 else ():
            product = result.clone()
            multiply(*operands[:2], operands[-1], result, *sizes, activation.number)
            torch.testing.assert_close(result, activation.function(product), rtol=1e-5, atol=1e-6 * depth**0.5)
            result = product
