"""torch.autocast inside and around compiled programs: the same dtypes and the same bits as in eager."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

import thunder_core as thunder


def small_network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3))


def cast(**options: Any) -> torch.autocast:
    return torch.autocast("cpu", **{"dtype": torch.bfloat16, **options})


def managed(model: nn.Module, x: torch.Tensor) -> Any:
    with cast():
        return model(x)


@cast()
def decorated(model: nn.Module, x: torch.Tensor) -> Any:
    return model(x)


def nested(model: nn.Module, x: torch.Tensor) -> Any:
    with cast():
        first = model(x)
        with torch.autocast("cpu", enabled=False):
            second = model(x)
        third = model(x)
    return first, second, third, model(x)


def half(model: nn.Module, x: torch.Tensor) -> Any:
    with cast(dtype=torch.float16):
        return model(x)


def uncached(model: nn.Module, x: torch.Tensor) -> Any:
    with cast(cache_enabled=False):
        return model(x), model(x[:1])


def used_twice(model: nn.Module, x: torch.Tensor) -> Any:
    with cast():
        return model[0](x), model[0](x[:1])


def asked(model: nn.Module, x: torch.Tensor) -> Any:
    with cast():
        return model(x) if torch.is_autocast_enabled("cpu") else x


class Product(torch.autograd.Function):
    """A product in full precision, inside and outside of autocast."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight = ctx.saved_tensors
        return gradient @ weight.t(), x.t() @ gradient


def custom(model: nn.Module, x: torch.Tensor) -> Any:
    with cast():
        return Product.apply(model[0](x), model[0].weight)


PROGRAMS = [managed, decorated, nested, uncached, used_twice, asked, custom]


def assert_same(program: Callable[..., Any], around: Callable[[], Any] = contextlib.nullcontext) -> None:
    """Compare results and gradients with eager at the first and at a later call."""
    eager = small_network()
    ours, compiled = copy.deepcopy(eager), thunder.jit(program)
    x = torch.linspace(-1, 1, 8).reshape(2, 4)
    for _ in range(2):
        with around():
            found = tree_leaves(compiled(ours, x))
        with around():
            wanted = tree_leaves(program(eager, x))
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
        for results in (found, wanted):
            sum(result.float().sum() for result in results if result.requires_grad).backward()
        torch.testing.assert_close(
            [p.grad for p in ours.parameters()], [p.grad for p in eager.parameters()], rtol=1e-2, atol=1e-2
        )


@pytest.mark.parametrize("program", [half, *PROGRAMS])
def test_autocast_inside_a_program_matches_eager(program: Callable[..., Any]) -> None:
    assert_same(program)


@pytest.mark.parametrize("program", [lambda model, x: model(x), *PROGRAMS])
def test_autocast_around_a_program_matches_eager(program: Callable[..., Any]) -> None:
    assert_same(program, cast)


CAST_WITHIN: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "bilinear": lambda x: nn.functional.bilinear(x, x, torch.linspace(-1, 1, 32).view(2, 4, 4)),
    "a pseudo-inverse": torch.linalg.pinv,
}


@pytest.mark.parametrize("name", CAST_WITHIN)
def test_an_operator_that_calls_operators_with_casts_matches_eager(name: str) -> None:
    program, x = CAST_WITHIN[name], torch.linspace(-1, 1, 8).view(2, 4).requires_grad_()
    compiled = thunder.jit(program)
    with cast():
        for _ in range(2):
            torch.testing.assert_close(compiled(x), program(x), rtol=0, atol=0)
            gradients = [torch.autograd.grad(call(x).sum(), x)[0] for call in (compiled, program)]
            torch.testing.assert_close(*gradients, rtol=0, atol=0)


def test_autocast_around_a_program_is_guarded() -> None:
    model, x = small_network(), torch.ones(2, 4)
    compiled = thunder.jit(lambda model, x: model(x))
    with cast():
        assert compiled(model, x).dtype == torch.bfloat16
    assert compiled(model, x).dtype == torch.float32
    with cast(dtype=torch.float16):
        assert compiled(model, x).dtype == torch.float16
    assert thunder.cache_misses(compiled) == 3


@pytest.mark.parametrize("program", [managed, used_twice, custom])
@pytest.mark.parametrize("inside", [False, True])
def test_backward_in_the_program_matches_eager(program: Callable[..., Any], inside: bool) -> None:
    def step(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        model.zero_grad()
        with cast(enabled=inside):
            loss = sum(result.float().square().sum() for result in tree_leaves(program(model, x)))
            loss.backward()
        return loss.detach()

    eager = small_network()
    ours, compiled = copy.deepcopy(eager), thunder.jit(step)
    x = torch.linspace(-1, 1, 8).reshape(2, 4)
    for _ in range(3):
        torch.testing.assert_close(compiled(ours, x), step(eager, x), rtol=0, atol=0)
        torch.testing.assert_close(
            [p.grad for p in ours.parameters()], [p.grad for p in eager.parameters()], rtol=0, atol=0
        )


def test_error_restores_autocast() -> None:
    def program(model: nn.Module, x: torch.Tensor) -> Any:
        with cast():
            y = model[0](x)
            with cast(dtype=torch.float16):  # PyTorch's own cache returns the weight in the other dtype
                return y, model[0](x)

    for function in (program, thunder.jit(program)):
        with pytest.raises(RuntimeError, match="Half and BFloat16"):
            function(small_network(), torch.ones(2, 4))
        assert not torch.is_autocast_enabled("cpu")
        assert torch.get_autocast_dtype("cpu") is torch.bfloat16
        assert torch.autocast_increment_nesting() == 1
        torch.autocast_decrement_nesting()


def test_cached_casts_of_two_weights_are_distinguished() -> None:
    def program(one: torch.Tensor, other: torch.Tensor, x: torch.Tensor) -> Any:
        with cast():
            return [x @ one, x[:1] @ one, x @ other, x[:1] @ other]

    weights = [torch.ones(4, 4, requires_grad=True), torch.zeros(4, 4, requires_grad=True)]
    compiled = thunder.jit(program)
    with torch.no_grad():
        compiled(*weights, torch.ones(2, 4))
    parts = [part for line in thunder.last_traces(compiled)[0].bound_symbols for part in line.subsymbols]
    made = {
        proxy.name: part.inputs[0].name for part in parts for proxy in part.outputs if "_to_copy" in part.symbol.name
    }
    products = [
        made[part.args[1].name] for part in parts if part.symbol.short_name == "default" and "mm" in part.symbol.name
    ]
    assert products == ["one", "one", "other", "other"]


@pytest.mark.parametrize("create_graph", [False, True])
def test_a_backward_under_autocast_computes_in_the_dtypes_of_the_forward(create_graph: bool) -> None:
    model, x = small_network(), torch.rand(5, 4)
    gradients = []
    for function, is_cast in ((model, False), (thunder.jit(model), True)):
        loss = function(x).square().sum()
        with cast(enabled=is_cast):
            gradients.append(torch.autograd.grad(loss, list(model.parameters()), create_graph=create_graph))
    torch.testing.assert_close(*gradients)
