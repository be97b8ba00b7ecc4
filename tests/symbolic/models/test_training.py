"""Derivatives, autocast, checkpoints, memory budgets and estimates with symbolic sizes, compared with eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import thunder_core as thunder

SHAPES = ((3, 5), (1, 4), (2, 1), (1, 1), (4, 9))
WIDTH = 8


class Block(torch.nn.Module):
    """A linear layer between norms, over tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(functional.gelu(self.up(self.norm(x)))) * x.shape[1]


class Blocks(torch.nn.Module):
    """Equal blocks in sequence."""

    def __init__(self, count: int, apply: Callable[..., Any] | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(count))
        self.apply_block = apply or (lambda block, x: block(x))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = self.apply_block(block, x)
        return x.softmax(1).square().sum()


def gradients(run: Callable[..., torch.Tensor], model: torch.nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    return [loss := run(x), *torch.autograd.grad(loss, list(model.parameters()))]


def assert_trained_as_by_eager(
    model: torch.nn.Module, compiled: Any, programs: int = 2, tolerance: float = 1e-5
) -> None:
    for shape in SHAPES:
        x = torch.randn(*shape, WIDTH)
        ours, eager = gradients(compiled, model, x), gradients(model, model, x)
        torch.testing.assert_close(ours, eager, rtol=tolerance, atol=tolerance)
        assert not thunder.last_program(compiled).constant_because
    assert not thunder.last_backward_reason(compiled)
    assert thunder.cache_misses(compiled) <= programs, thunder.recompile_reasons(compiled)


@pytest.mark.parametrize("budget", [1.0, 0.5, 0.0])
def test_tensors_saved_within_a_budget_serve_all_sizes(budget: float) -> None:
    model = Blocks(3)
    compiled = thunder.jit(model, cache="symbolic values", memory_budget=budget)
    assert_trained_as_by_eager(model, compiled)


def test_checkpoints_are_recomputed_at_all_sizes() -> None:
    model = Blocks(2, lambda block, x: checkpoint(block, x, use_reentrant=False))
    assert_trained_as_by_eager(model, thunder.jit(model, cache="symbolic values"))


def test_autocast_serves_all_sizes() -> None:
    model = Blocks(2)
    compiled = thunder.jit(model, cache="symbolic values")
    with torch.autocast("cpu", torch.bfloat16):
        assert_trained_as_by_eager(model, compiled, tolerance=2e-2)


def peak_of(compiled: Any, x: torch.Tensor) -> int:
    compiled(x)
    return int(thunder.examine_memory(compiled).peak)


def test_memory_is_estimated_for_the_sizes_that_were_traced() -> None:
    model, x = Blocks(2), torch.randn(3, 5, WIDTH)
    peaks = [peak_of(thunder.jit(model, cache=cache), x) for cache in ("symbolic values", "constant values")]
    assert peaks[0] == peaks[1] > 0


def test_memory_of_regions_is_estimated_for_the_sizes_that_were_traced() -> None:
    model, x, peaks = Blocks(1), torch.randn(3, 5, WIDTH), []
    with torch.no_grad():
        for cache in ("symbolic values", "constant values"):
            compiled = thunder.jit(model, cache=cache, executors=("inductor", "torch"))
            peaks.append(peak_of(compiled, x))
    assert peaks[0] == peaks[1] > 0


def test_a_function_is_differentiated_for_all_sizes() -> None:
    """Differentiate with `thunder.grad`, once and twice."""

    def energy(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return ((x @ weight).tanh() * x.shape[0]).square().mean()

    def derivative(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return thunder.grad(energy, argnums=1)(x, weight) * x.shape[1]

    compiled = thunder.jit(derivative, cache="symbolic values")
    weight = torch.randn(WIDTH, 3)
    for shape in SHAPES:
        x = torch.randn(*shape, WIDTH)
        leaf = weight.clone().requires_grad_(True)
        (expected,) = torch.autograd.grad(energy(x, leaf), leaf)
        torch.testing.assert_close(compiled(x, weight), expected * x.shape[1])
    assert thunder.cache_misses(compiled) <= 2, thunder.recompile_reasons(compiled)


def test_equal_layers_are_compiled_once_for_all_sizes(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THUNDER_CACHE_DIR", str(tmp_path / "cache"))
    model = Blocks(4)
    compiled = thunder.jit(model, cache="symbolic values", executors=("inductor", "torch"))
    with torch.no_grad():
        for shape in SHAPES[:3]:
            x = torch.randn(*shape, WIDTH)
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    assert thunder.cache_misses(compiled) == 1, thunder.recompile_reasons(compiled)
    regions = len(list((tmp_path / "cache" / "kernels" / "entries").glob("*")))
    assert regions <= 5  # 4 layers with two regions each: the first region, the last, and the repeated ones


def circular(x: torch.Tensor, number: int) -> torch.Tensor:
    return functional.pad(x[None], (1, number % 3), mode="circular") * 2


def copied_over(x: torch.Tensor, number: int) -> torch.Tensor:
    x = x * 1
    x.copy_(torch.arange(x.shape[0]) + number)
    return x.expand(2, -1)


@pytest.mark.parametrize("function", [circular, copied_over], ids=lambda function: function.__name__)
def test_written_tensor_is_differentiated_at_all_sizes(function: Callable[..., torch.Tensor]) -> None:
    compiled = thunder.jit(function, cache="symbolic values")
    for length, number in ((6, 5), (4, 2), (7, 8)):
        x = torch.randn(length, requires_grad=True)
        results = [run(x, number) for run in (function, compiled)]
        (expected,), (found,) = (torch.autograd.grad(result.square().sum(), x) for result in results)
        assert torch.equal(results[0], results[1])
        assert torch.equal(expected, found)
    assert not thunder.last_program(compiled).constant_because
    assert thunder.cache_misses(compiled) == 1


def test_interpolation_of_an_empty_tensor_is_refused_as_by_the_kernel() -> None:
    """PyTorch's decomposition for symbolic sizes, from which gradients are derived, does not refuse an empty tensor."""

    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return y * 2, torch.nn.functional.interpolate(x.reshape(1, 1, x.shape[0], -1), scale_factor=2, mode="bilinear")

    compiled = thunder.jit(program, cache="symbolic values", executors=("torch",))
    for function in (program, compiled):
        nothing, other = torch.ones(5, 0, requires_grad=True), torch.ones(2, 3, requires_grad=True)
        with pytest.raises(RuntimeError, match="Input and output sizes should be greater than 0"):
            function(nothing, other)


def test_backward_for_some_results_leaves_other_sizes_valid() -> None:
    """The backward is derived at its first use, when no constraint can be added, and does not assume the sizes of a
    call.
    """

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first, second = x * 1, x * 1
        return first.T if x.shape[1] % 2 else first, second * 2, first.cumprod(-1), first.cumsum(-1)

    compiled = thunder.jit(program, cache="symbolic values")
    for shape in ((4, 1), (4, 5)):
        for chosen in ((0, 2), (0, 3), (2, 3), (0, 1, 2, 3)):
            gradients = []
            for run in (compiled, program):
                x = torch.linspace(-1.0, 2.0, shape[0] * shape[1]).view(shape).requires_grad_()
                results = run(x)
                gradients.append(torch.autograd.grad([(results[place] ** 2).sum() for place in chosen], x)[0])
            torch.testing.assert_close(*gradients)
    assert thunder.cache_misses(compiled) == 1
    assert str(thunder.last_traces(compiled)[0].inputs[0].shape) == "(s0, s1)"


def test_gradients_of_block_diag_with_an_empty_vector_match_eager() -> None:
    def program(x: torch.Tensor, n: int) -> torch.Tensor:
        return torch.block_diag(functional.pad(x * 1, (-1, n)), x @ x)

    compiled = thunder.jit(program)
    for n in (9, 6, -3, -2, 0):
        gradients = []
        for run in (compiled, program):
            x = torch.linspace(-1.0, 2.0, 4).requires_grad_()
            result = run(x, n)
            gradients.append(torch.autograd.grad((result * torch.arange(result.numel()).view(result.shape)).sum(), x))
        torch.testing.assert_close(*gradients)
