"""One program serves all sizes even if PyTorch's C++ functions need plain integers, compared with eager."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import thunder_core as thunder
from tests.symbolic.sizes.test_sizes import assert_same
from thunder_core.workflow.validation.layouts import check_layouts

SHAPES = ((3, 5), (6, 2), (2, 7))
PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "so many points": lambda x: torch.fft.fft(x, 6).abs() + torch.fft.rfft(x, 10).abs().sum(),
    "so many real points": lambda x: torch.fft.irfft(x, 6) * torch.fft.hfft(x, n=6, dim=-1, norm="ortho"),
    "points of both dimensions": lambda x: torch.fft.irfft2(x, (4, 6)) + torch.fft.fftn(x, s=(4, 6)).real,
    "kron": lambda x: torch.kron(x, x.t().contiguous()) + torch.kron(x[0], x).sum(),
    "chain of two": lambda x: torch.linalg.multi_dot([x, x.t()]),
    "bilinear": lambda x: torch.nn.functional.bilinear(x, x, torch.ones(2, x.shape[1], x.shape[1]), torch.ones(2)),
    "covariances": lambda x: torch.cov(x, correction=0) + torch.cov(x.flatten()),
    "correlations": torch.corrcoef,
    "sums": lambda x: x.cumsum(1) + torch.cumsum(x, 0, dtype=torch.float64),
    "products": lambda x: torch.cumprod(x - x[:1], 0) + x.cumprod(dim=-1),
    "powers": torch.linalg.vander,
    "sign": lambda x: torch.sgn(x) * x,
    "places": lambda x: torch.take_along_dim(x, x.argsort(1), 1) + torch.take_along_dim(x, x.argmax())[0],
    "broadcast places": lambda x: torch.take_along_dim(x, x.argmax(1, keepdim=True), 1),
    "diagonal": lambda x: torch.block_diag(x, x[0], x.t()),
    "pairs": lambda x: (torch.combinations(x[0]), torch.combinations(x[0], 2, True) * 2, torch.combinations(x[0], 1)),
    "around": lambda x: torch.nn.functional.pad(x.repeat(1, 3)[None], (1, 2), mode="circular"),
    "slopes": lambda x: torch.gradient(x.repeat(1, 2), dim=1)[0] * 3,
}
UNFOLLOWED: dict[str, Callable[[torch.Tensor], Any]] = {  # without gradients, or with a recorded backward
    "windows of a signal": lambda x: torch.stft(x.repeat(1, 8), 4, window=torch.ones(4), return_complex=True).abs(),
    "hash": lambda x: torch.hash_tensor(x, 1),
}


def gradient(result: Any, x: torch.Tensor) -> torch.Tensor:
    """Return the gradient of the sum of squares of all results."""
    results = result if isinstance(result, tuple | list) else [result]
    loss = sum((value * value).sum() for value in results)
    return torch.autograd.grad(loss, x)[0]  # type: ignore[arg-type]


@pytest.mark.parametrize("name", PROGRAMS)
def test_all_sizes_share_one_program_and_one_backward(name: str) -> None:
    compiled = thunder.jit(PROGRAMS[name], cache="symbolic values")
    for shape in SHAPES:
        x = torch.randn(*shape, requires_grad=True)
        found, wanted = compiled(x), PROGRAMS[name](x)
        assert_same(wanted, found)
        torch.testing.assert_close(gradient(found, x), gradient(wanted, x), rtol=1e-4, atol=1e-4)
        assert not thunder.last_program(compiled).constant_because
    assert not thunder.last_backward_reason(compiled)
    assert thunder.cache_misses(compiled) == 1, thunder.recompile_reasons(compiled)


@pytest.mark.parametrize("name", PROGRAMS | UNFOLLOWED)
def test_all_sizes_share_one_program_with_the_layouts_of_eager(name: str) -> None:
    function = (PROGRAMS | UNFOLLOWED)[name]
    compiled = thunder.jit(function, cache="symbolic values")
    for shape in SHAPES[1:]:
        x = torch.randn(*shape)
        compiled(x)
        with check_layouts() as watch:
            assert_same(function(x), compiled(x))
        assert not watch.mismatches
        assert not thunder.last_program(compiled).constant_because
    assert thunder.cache_misses(compiled) == 1, thunder.recompile_reasons(compiled)


@pytest.mark.parametrize("zeros", [(), (1,), (0, 3), (0, 1, 2, 3)])
def test_products_are_differentiated_at_zero_elements(zeros: tuple[int, ...]) -> None:
    compiled = thunder.jit(lambda x: x.cumprod(0), cache="symbolic values")
    for length in (4, 6, 1):
        x = torch.randn(length)
        x[[zero for zero in zeros if zero < length]] = 0
        x.requires_grad_()
        found, wanted = (gradient(run(x), x) for run in (compiled, lambda x: x.cumprod(0)))
        torch.testing.assert_close(found, wanted)
    assert thunder.cache_misses(compiled) <= 2, thunder.recompile_reasons(compiled)


def test_powers_of_single_elements_are_refused_as_by_eager() -> None:
    compiled = thunder.jit(lambda x: (torch.linalg.vander(x), x + 1)[1], cache="symbolic values")
    for length in (3, 4):
        assert torch.equal(compiled(torch.ones(length)), torch.full((length,), 2.0))
    with pytest.raises(RuntimeError, match="N must be greater than 1"):
        compiled(torch.ones(1))


@pytest.mark.parametrize("made", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("given", [torch.float32, torch.float16])
def test_gradients_of_sums_are_added_in_the_dtype_of_the_input(given: torch.dtype, made: torch.dtype) -> None:
    def program(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return (x.cumsum(0, dtype=made) * weight).sum()

    compiled = thunder.jit(program, cache="symbolic values")
    for length in (50, 70):
        x, weight = torch.randn(length, dtype=given, requires_grad=True), torch.randn(length, dtype=made)
        found, wanted = (torch.autograd.grad(run(x, weight), x)[0] for run in (compiled, program))
        assert torch.equal(found, wanted)


def test_order_of_a_matrix_chain_is_a_constraint() -> None:
    compiled = thunder.jit(lambda *chain: torch.linalg.multi_dot(chain), cache="symbolic values")
    for sizes in ((2, 3, 4, 5), (3, 5, 6, 7), (9, 8, 7, 1), (20, 9, 8, 2)):
        chain = [torch.randn(rows, columns) for rows, columns in itertools.pairwise(sizes)]
        assert_same(torch.linalg.multi_dot(chain), compiled(*chain))
        assert not thunder.last_program(compiled).constant_because
    assert thunder.cache_misses(compiled) <= 3, thunder.recompile_reasons(compiled)


def test_outside_index_is_within_the_tensor_or_raises() -> None:
    """One program serves indices from the beginning, another serves indices from the end; other indices raise."""
    compiled = thunder.jit(lambda x, place: x[place] + torch.select(x, 0, place), cache="symbolic values")
    for length, place in ((5, 2), (7, 4), (9, 8), (5, -2), (6, -6)):
        x = torch.randn(length, 3)
        assert_same(x[place] * 2, compiled(x, place))
        assert not thunder.last_program(compiled).constant_because
    assert thunder.cache_misses(compiled) == 2, thunder.recompile_reasons(compiled)
    with pytest.raises(IndexError):
        compiled(torch.randn(5, 3), 5)


def test_a_product_that_is_written_to_has_no_gradient_as_in_eager() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        product = (x * 1).cumprod(-1)
        product.squeeze(0).add_(1)
        return product

    compiled = thunder.jit(program, cache="symbolic values", executors=("torch",))
    for run in (program, compiled):
        x = torch.ones(2, 3, requires_grad=True)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(run(x).sum(), x)


VALUES: dict[str, Callable[[torch.Tensor], Any]] = {
    "are they equal": lambda x: x * 2 if torch.equal(x, x + 0) else x,
    "is there one": lambda x: x * 2 if (x > 100).any() else x.softmax(1),
    "a condition by a size": lambda x: x * 2 if torch.ones(x.shape[0]).sum() > 0 else x,
    "a value behind a size": lambda x: x + int(torch.full((), x.shape[1]).clamp(max=2)),
}


@pytest.mark.parametrize("name", VALUES)
def test_value_read_leaves_sizes_symbolic(name: str) -> None:
    compiled = thunder.jit(VALUES[name], cache="symbolic values")
    for shape in SHAPES:
        x = torch.randn(*shape)
        assert_same(VALUES[name](x), compiled(x))
        assert not thunder.last_program(compiled).constant_because
    assert thunder.cache_misses(compiled) == 1, thunder.recompile_reasons(compiled)


def test_data_dependent_sizes_are_symbols_like_others() -> None:
    compiled = thunder.jit(lambda x: (x[x[:, 0] > 0].sum(), x.nonzero().shape[0] + x.shape[1]), cache="symbolic values")
    for shape, positive in (((5, 3), 2), ((6, 3), 2), ((9, 3), 2), ((6, 3), 4)):
        x = torch.zeros(*shape)
        x[:positive, 0] = 1
        assert_same((x[x[:, 0] > 0].sum(), x.nonzero().shape[0] + x.shape[1]), compiled(x))
        assert not thunder.last_program(compiled).constant_because
    assert thunder.cache_misses(compiled) == 1, thunder.recompile_reasons(compiled)


def test_empty_attention_does_not_run_a_kernel_that_divides_by_sizes() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        part = x[: x.size(0) // 2][None]
        return torch.nn.functional.scaled_dot_product_attention(part, part, part)

    compiled = thunder.jit(program, cache="symbolic values")
    for rows in (4, 6, 1):
        x = torch.randn(rows, 6, 4, requires_grad=True)
        torch.testing.assert_close(compiled(x), program(x))


def test_tensors_of_one_element_lose_all_dimensions() -> None:
    """PyTorch's C++ functions take a view that only drops symbolic sizes that are known to be one."""

    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.reshape_as(y), x.view_as(y) * 2

    compiled = thunder.jit(program, cache="symbolic values")
    for _ in range(2):
        x, y = torch.randn(1, 1), torch.randn(())
        assert_same(compiled(x, y), program(x, y))
        shapes = [tuple(proxy.shape) for proxy in thunder.last_traces(compiled)[0].outputs]
        assert shapes == [(), ()]
    with pytest.raises(RuntimeError, match="shape '\\[\\]' is invalid"):
        compiled(torch.randn(2, 1), torch.randn(()))
