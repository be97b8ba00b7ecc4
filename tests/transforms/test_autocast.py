"""The transform Autocast: the casts of torch.autocast become lines of the trace."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves
from transformers import LlamaConfig, LlamaForCausalLM

import thunder_core as thunder
from thunder_core.foundation.errors import OperationFailed, SymbolicAttemptWarning
from thunder_core.passes.transforms.autocast import Autocast

X = torch.linspace(-1, 1, 8).reshape(2, 4)


def small_network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3))


def chained(model: nn.Module, x: torch.Tensor) -> Any:
    y = model(x)
    return y, functional.cross_entropy(y, torch.tensor([0, 2])), y.softmax(-1), y.exp().cumsum(0), y @ y.t()


def mixed(model: nn.Module, x: torch.Tensor) -> Any:
    y = model[0](x)
    return torch.cat([y, x, x], 1), y + x.repeat(1, 2), torch.addmm(x, y[:, :2], x)


def repeated(model: nn.Module, x: torch.Tensor) -> Any:
    return model(x).sum(), model(x).repeat(2, 1), model[0](x), model[1:](model[0](x))


def attended(model: nn.Module, x: torch.Tensor) -> Any:
    q = model[0](x).reshape(1, 2, 2, 4)
    return functional.scaled_dot_product_attention(q, q.float(), q)


def overruled(model: nn.Module, x: torch.Tensor) -> Any:
    with torch.autocast("cpu", enabled=False):
        exact = model[0](x)
    with torch.autocast("cpu", dtype=torch.float16, cache_enabled=False):
        half = model[0](x)
    return exact, half, model[1:](exact)


def in_place(model: nn.Module, x: torch.Tensor) -> Any:
    y = model[0](x)
    y.mul_(2)
    return y.relu_(), y[0]


def convolved(model: nn.Module, x: torch.Tensor) -> Any:
    return functional.conv1d(model[0](x)[None], torch.ones(3, 2, 2)), functional.layer_norm(x, (4,))


PROGRAMS = [chained, mixed, repeated, attended, overruled, in_place, convolved]


@pytest.mark.parametrize("executors", [("torch",), ("inductor", "torch")], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("program", PROGRAMS)
def test_results_and_gradients_are_those_under_autocast(
    program: Callable[..., Any], dtype: torch.dtype, executors: tuple[str, ...]
) -> None:
    eager = small_network()
    ours = copy.deepcopy(eager)
    compiled = thunder.jit(program, transforms=[Autocast(dtype)], executors=executors)
    exactly = {"rtol": 0, "atol": 0} if executors == ("torch",) else {"rtol": 2e-2, "atol": 2e-2}
    for _ in range(2):
        found = tree_leaves(compiled(ours, X))
        with torch.autocast("cpu", dtype=dtype):
            wanted = tree_leaves(program(eager, X))
        torch.testing.assert_close(found, wanted, **exactly)
        for results in (found, wanted):
            sum(result.float().sum() for result in results).backward()
        torch.testing.assert_close(
            [p.grad for p in ours.parameters()], [p.grad for p in eager.parameters()], rtol=2e-2, atol=2e-2
        )


def test_casts_are_lines_and_calls_stay_calls() -> None:
    compiled = thunder.jit(lambda model, x: model(x), transforms=[Autocast()])
    compiled(small_network(), X)
    lines = [line.symbol.name for line in thunder.last_traces(compiled)[-1].bound_symbols]
    assert lines.count("torch.nn.functional.linear") == 2
    assert lines.count("torch.ops.aten._to_copy.default") >= 5
    assert not any("autocast" in name for name in lines)


def test_a_weight_is_cast_once() -> None:
    compiled = thunder.jit(lambda model, x: (model(x), model(x + 1)), transforms=[Autocast()])
    compiled(small_network(), X)
    text = str(thunder.last_traces(compiled)[-1])
    assert text.count("_to_copy.default(model_0_weight") == 1


def test_autocast_around_is_switched_off_for_the_program() -> None:
    model = small_network()
    compiled = thunder.jit(lambda model, x: model(x), transforms=[Autocast(torch.float16)])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert compiled(model, X).dtype == torch.float16
        assert torch.is_autocast_enabled("cpu")
        assert torch.get_autocast_dtype("cpu") is torch.bfloat16


def test_binary_cross_entropy_equals_eager_under_autocast() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return functional.binary_cross_entropy(x.sigmoid(), torch.ones(2, 4))

    with torch.autocast("cpu", dtype=torch.bfloat16):
        wanted = program(X)
    torch.testing.assert_close(thunder.jit(program, transforms=[Autocast()])(X), wanted, rtol=0, atol=0)


def test_a_program_that_differentiates_itself_is_refused() -> None:
    def program(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        loss = model(x).sum()
        loss.backward()
        return loss.detach()

    with pytest.raises(OperationFailed, match="calls backward") as caught:
        thunder.jit(program, transforms=[Autocast()])(small_network(), X)
    assert caught.value.where is not None


def test_a_branch_on_a_value_is_the_same_under_autocast() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x @ x
        return y * 2 if (x > 0).all() else y

    compiled = thunder.jit(program, transforms=[Autocast()])
    for x in (torch.ones(2, 2), -torch.ones(2, 2), torch.ones(2, 2)):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            wanted = program(x)
        torch.testing.assert_close(compiled(x), wanted, rtol=0, atol=0)
    assert (thunder.cache_misses(compiled), thunder.cache_hits(compiled)) == (2, 1)


def scaled(model: nn.Module, x: torch.Tensor, factor: Any) -> Any:
    return model(x) * factor + factor


def sized(model: nn.Module, x: torch.Tensor, factor: Any) -> Any:
    half = x.shape[0] // 2
    return model(x)[:half].sum() / half, model(x).repeat(factor, 1).reshape(-1, 3 * factor)


def looped(model: nn.Module, x: torch.Tensor, factor: Any) -> Any:
    def body(count: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return count + 1, model[0](value)[:, :4].contiguous().float()

    return torch.while_loop(lambda count, value: count < 3, body, (torch.tensor(0), x))[1] * factor


def counted(model: nn.Module, x: torch.Tensor, factor: Any) -> Any:
    return model(x[x[:, 0] > -0.9]) * factor


def of_an_item(model: nn.Module, x: torch.Tensor, factor: Any) -> Any:
    return model(x) * x.sum().item() + factor


@pytest.mark.parametrize("program", [scaled, sized, looped, counted, of_an_item])
@pytest.mark.parametrize("factors", [(2, 3, 5), (2.5, 3.5, 5.5)])
def test_one_program_serves_all_sizes_and_numbers(program: Callable[..., Any], factors: tuple[Any, ...]) -> None:
    if program is sized and factors[0] == 2.5:
        pytest.skip("a size is an integer")
    model = small_network().requires_grad_(False)
    compiled = thunder.jit(program, transforms=[Autocast()], cache="symbolic values", executors=["torch"])
    with warnings.catch_warnings():
        warnings.simplefilter("error", SymbolicAttemptWarning)
        for size, factor in zip((4, 6, 10), factors, strict=True):
            x = torch.linspace(-1, 1, 4 * size).reshape(size, 4)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                expected = program(model, x, factor)
            torch.testing.assert_close(compiled(model, x, factor), expected, rtol=0, atol=0)
    assert thunder.cache_misses(compiled) == 1


def test_a_llama() -> None:
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32,
    )  # fmt: skip
    torch.manual_seed(0)
    model, tokens = LlamaForCausalLM(config), torch.randint(64, (2, 12))
    compiled = thunder.jit(model, transforms=[Autocast()])
    found = compiled(input_ids=tokens, labels=tokens, use_cache=False)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        wanted = model(input_ids=tokens, labels=tokens, use_cache=False)
    torch.testing.assert_close((found.loss, found.logits), (wanted.loss, wanted.logits), rtol=0, atol=0)
    ours = torch.autograd.grad(found.loss, list(model.parameters()))
    eagers = torch.autograd.grad(wanted.loss, list(model.parameters()))
    torch.testing.assert_close(ours, eagers, rtol=2e-2, atol=1e-3)


def doubling(name: str) -> Any:
    """A user's function that has the name of a PyTorch function."""

    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 2

    return type(
        name, (torch.autograd.Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    )


@pytest.mark.parametrize("name", ["autocast_scale", "inference_mode", "requires_grad_", "detach_"])
@pytest.mark.parametrize("way", ["plain", "transform", "context"])
def test_effects_are_known_by_the_called_function_and_not_by_its_name(name: str, way: str) -> None:
    function = doubling(name)

    def program(x: torch.Tensor) -> torch.Tensor:
        y = function.apply(x) * 3
        y.add_(1)
        return (y @ y.mT).sum()

    fast = thunder.jit(program, transforms=[Autocast()] if way == "transform" else [])
    x = torch.eye(3, requires_grad=True)
    with torch.autocast("cpu", enabled=way != "plain"):
        theirs = program(x)
    with torch.autocast("cpu", enabled=way == "context"):
        ours = fast(x)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(torch.autograd.grad(ours, x), torch.autograd.grad(theirs, x))
    assert "changes what autograd" not in thunder.last_program(fast).no_backward_reason
