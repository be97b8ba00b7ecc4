"""One program serves sizes of one and all other sizes, even if PyTorch's C++ functions distinguish them."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from functools import partial
from typing import Any

import pytest
import torch
from torch.fx.experimental import _config
from torch.nn import functional

import thunder_core as thunder
from tests.symbolic.sizes.test_sizes import assert_same

SHAPES = ((3, 5), (1, 4), (2, 1), (1, 1), (4, 9))
PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "reshape to rows": lambda x: x.transpose(1, 2).reshape(x.shape[0], -1) * 2,
    "reshape that is a view": lambda x: torch.reshape(x.transpose(0, 1), (x.shape[1], -1, 4, 2)) * 2,
    "reshape by keyword": lambda x: x.transpose(1, 2).reshape(shape=(-1,)) + 1,
    "flatten": lambda x: x.transpose(1, 2).flatten(1) * torch.flatten(x, -2, -1),
    "input by keyword": lambda x: torch.reshape(input=x, shape=(-1,)) * torch.flatten(input=x) + 1,
    "contiguous heads": lambda x: x.view(x.shape[0], -1, 2, 4).transpose(1, 2).contiguous().sum(1),
    "contiguous of one": lambda x: (x.sum(1, keepdim=True).transpose(1, 2).contiguous() * 2).sum(),
    "a view once more": lambda x: x[:, -3:].exp() + (x * 2)[:, -3:] + (x + 1)[:, -3:],
    "matmul": lambda x: x.matmul(x.transpose(1, 2)) @ x,
    "attention": lambda x: heads(x, torch.ones(1, 1, x.shape[1], x.shape[1], dtype=torch.bool)),
    "attention by keywords": lambda x: functional.scaled_dot_product_attention(
        query=x[None], key=x[None], value=x[None]
    ),
    "attention by a bias": lambda x: heads(x, torch.ones(x.shape[1], x.shape[1]) * x.shape[0]),
    "interpolate": lambda x: functional.interpolate(x, x.shape[0] + x.shape[1], mode="linear"),
    "interpolate a constant": lambda x: functional.interpolate(
        torch.arange(12.0).view(1, 1, 3, 4), (x.shape[1], 7), mode="bicubic"
    ),
}


def heads(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Apply attention with two heads, with one mask for the whole batch."""
    query = x.view(x.shape[0], x.shape[1], 2, 4).transpose(1, 2)
    return functional.scaled_dot_product_attention(query, query * 2, query + 1, attn_mask=mask).transpose(1, 2)


@pytest.mark.parametrize("name", PROGRAMS)
def test_sizes_of_one_share_the_program_of_other_sizes(name: str) -> None:
    compiled = thunder.jit(PROGRAMS[name], cache="symbolic values")
    for shape in SHAPES:
        x = torch.randn(*shape, 8)
        assert_same(PROGRAMS[name](x), compiled(x))
    assert thunder.cache_misses(compiled) == 1, thunder.recompile_reasons(compiled)


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_match_eager_for_sizes_of_one(name: str) -> None:
    compiled = thunder.jit(PROGRAMS[name], cache="symbolic values")
    for shape in SHAPES:
        x, gradients = torch.randn(*shape, 8, requires_grad=True), []
        for run in (PROGRAMS[name], compiled):
            result = run(x)
            if not result.requires_grad:
                return
            gradients += torch.autograd.grad(result.sin().sum(), x)
        torch.testing.assert_close(*gradients)
        assert not thunder.last_backward_reason(compiled)
    assert thunder.cache_misses(compiled) <= 2, thunder.recompile_reasons(compiled)


@pytest.mark.parametrize("shape", [(2, 7, 3), (2, 0, -1)])
def test_mismatched_sizes_are_refused_as_in_eager(shape: tuple[int, ...]) -> None:
    def reshaped(x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2).reshape(shape)

    x = torch.ones(3, 5, 8)
    with pytest.raises(RuntimeError) as expected:
        reshaped(x)
    with pytest.raises(RuntimeError) as found:
        thunder.jit(reshaped, cache="symbolic values")(x)
    assert str(found.value) == str(expected.value)


def test_write_to_another_tensor_keeps_copies_general() -> None:
    """A program that writes to another tensor than the copied tensor is traced for all sizes."""

    def counted(x: torch.Tensor) -> torch.Tensor:
        places = torch.zeros(x.shape[1])
        places += 1
        return x.transpose(1, 2).contiguous().sum(1) * places.sum()

    compiled = thunder.jit(counted, cache="symbolic values")
    for shape in SHAPES:
        x = torch.randn(*shape, 8)
        assert_same(counted(x), compiled(x))
    assert thunder.cache_misses(compiled) == 1, thunder.recompile_reasons(compiled)


@pytest.mark.parametrize("shape", SHAPES)
def test_writes_reach_tensors_that_eager_shares_for_some_sizes(shape: tuple[int, int]) -> None:
    def written(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = x.transpose(0, 1)
        copy = rows.reshape(-1, 8).view(-1)
        rows += 1
        return copy * 2, rows * 1

    compiled = thunder.jit(written, cache="symbolic values")
    for sizes in (shape, (2, 3)):
        x = torch.randn(*sizes, 8)
        assert_same(written(x.clone()), compiled(x.clone()))


@pytest.mark.parametrize(("size", "steps"), [(0, 4), (3, 0), (3, -1)])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_empty_images_are_refused_as_in_eager(mode: str, size: int, steps: int) -> None:
    def enlarged(x: torch.Tensor, steps: int) -> torch.Tensor:
        return torch.nn.functional.interpolate(x * 1, size=steps, mode=mode)

    compiled = thunder.jit(enlarged, cache="symbolic values")
    compiled(torch.ones(1, 2, 3, requires_grad=True), 6)
    x = torch.ones(1, 2, size, requires_grad=True)
    with pytest.raises(RuntimeError) as expected:
        enlarged(x, steps)
    with pytest.raises(RuntimeError) as found:
        compiled(x, steps)
    assert str(found.value) == str(expected.value)


def test_a_setting_of_pytorch_that_nobody_has_set_stays_unset():
    def program(x):
        return (x if _config.backed_size_oblivious else -x)[0].squeeze(0)

    def check():
        compiled = thunder.jit(program)
        for _ in range(2):
            assert compiled(torch.ones(2, 3)).tolist() == [-1, -1, -1]
        assert thunder.cache_misses(compiled) == 1

    Context().run(check)  # in a new context, nothing is set


# By name: a function whose result the program drops, sizes that it accepts, and sizes that eager PyTorch refuses.
REFUSED_SIZES: dict[str, tuple[Callable[[torch.Tensor], Any], tuple[int, ...], tuple[int, ...]]] = {
    "no channels": (partial(functional.interpolate, scale_factor=2.0), (1, 2, 4, 5), (1, 0, 4, 5)),
    "no rows": (partial(functional.interpolate, scale_factor=2.0, mode="bilinear"), (1, 2, 4, 5), (1, 2, 0, 5)),
    "no pixels": (partial(functional.interpolate, scale_factor=0.3, mode="bilinear"), (1, 2, 4, 5), (1, 2, 2, 5)),
    "an empty pool": (partial(functional.adaptive_avg_pool2d, output_size=2), (1, 2, 4, 5), (1, 2, 0, 5)),
    "an empty grid": (lambda x: functional.grid_sample(x, torch.zeros(1, 2, 2, 2)), (1, 2, 4, 5), (1, 2, 0, 5)),
    "no maximum": (torch.max, (2, 3), (0, 3)),
    "lengths": (
        lambda x: functional.ctc_loss(
            x, torch.ones(2, 2, dtype=torch.long), torch.tensor([6, 6]), torch.tensor([2, 2])
        ),
        *((6, 2, 4), (5, 2, 4)),
    ),
}


@pytest.mark.filterwarnings("ignore:Default grid_sample:UserWarning")
@pytest.mark.parametrize("name", REFUSED_SIZES)
def test_unused_call_raises_for_sizes_that_its_kernel_refuses(name: str) -> None:
    function, accepted, refused = REFUSED_SIZES[name]
    compiled = thunder.jit(lambda x: (function(x), x + 1)[1], cache="symbolic values", executors=("torch",))
    x = torch.ones(accepted)
    assert torch.equal(compiled(x), x + 1)
    with pytest.raises(RuntimeError) as wanted:
        function(torch.ones(refused))
    with pytest.raises(RuntimeError) as found:
        compiled(torch.ones(refused))
    assert str(found.value).splitlines()[0] == str(wanted.value).splitlines()[0]


@pytest.mark.parametrize("refused", [(1, 0, 4, 5), (1, 2, 2, 5)])
def test_gradient_of_an_interpolation_raises_for_sizes_that_its_kernel_refuses(refused: tuple[int, ...]) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(functional.interpolate(x.requires_grad_(), scale_factor=0.3).sum(), x)[0]

    compiled = thunder.jit(program, cache="symbolic values", executors=("torch",))
    assert torch.equal(compiled(torch.ones(1, 2, 4, 5)), program(torch.ones(1, 2, 4, 5)))
    with pytest.raises(RuntimeError) as wanted:
        program(torch.ones(refused))
    with pytest.raises(RuntimeError) as found:
        compiled(torch.ones(refused))
    assert str(found.value).splitlines()[0] == str(wanted.value).splitlines()[0]
