"""Operators: a function in place of a PyTorch function, with metadata, a derivative, and support in artifacts."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

import thunder_core as thunder
from thunder_core.backend.claiming.operator import Operator
from thunder_core.foundation.errors import BadRecipe, WrongInputs
from thunder_core.passes.recipe import Recipe


def fast_silu(input: torch.Tensor, inplace: bool = False) -> torch.Tensor:  # noqa: A002 - as PyTorch calls it
    """Compute SiLU from its formula."""
    return input * torch.sigmoid(input)


def doubled_gradient(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
    """A wrong derivative that shows which derivative is used."""
    return 2 * gradient * ctx.saved_tensors[0]


def save(ctx: Any, args: Any, kwargs: Any, output: Any) -> None:
    """Save the input."""
    ctx.save_for_backward(args[0])


def blind_silu(input: torch.Tensor, inplace: bool = False) -> torch.Tensor:  # noqa: A002 - as PyTorch calls it
    """Compute SiLU by a NumPy kernel, which fake tensors do not support."""
    values = input.detach().numpy()
    return torch.from_numpy(values / (1 + torch.exp(-input).numpy()))


FAST = Operator(functional.silu, fast_silu)


class Swish(torch.nn.Module):
    """A layer that contains the operation."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.silu(self.inner(x))


def executors_of(compiled: Any) -> list[str]:
    """Return the executors of the last program's bound symbols, in order."""
    return [bsym.executor for bsym in thunder.last_traces(compiled)[-1].bound_symbols if bsym.executor]


def test_operator_runs_in_place_of_the_function() -> None:
    compiled, x = thunder.jit(functional.silu, executors=[FAST]), torch.randn(4)
    assert torch.equal(compiled(x), fast_silu(x))
    assert FAST.name in executors_of(compiled)


def test_unsupported_call_is_left_to_other_executors() -> None:
    wide = Operator(functional.silu, fast_silu, supports=lambda bsym: bsym.inputs[0].shape[-1] > 2)
    compiled = thunder.jit(functional.silu, executors=[wide])
    for width, runs in ((2, False), (5, True)):
        compiled(torch.randn(width))
        assert (wide.name in executors_of(compiled)) == runs
    compiled(torch.randn(5), inplace=True)
    assert wide.name not in executors_of(compiled)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda input, inplace=False: input.double(), "torch.float64"),  # noqa: A006
        (lambda input, inplace=False: input[:1], r"\[1\]"),  # noqa: A006
        (lambda input, inplace=False: (input, input), r"returns \('torch.float32"),  # noqa: A006
        (lambda input, inplace=False: [input], r"returns \['torch.float32"),  # noqa: A006
        (lambda input, inplace=False: None, "returns no tensor"),  # noqa: A006
    ],
)
def test_other_metadata_is_refused_with_the_line(wrong: Any, words: str) -> None:
    with pytest.raises(BadRecipe, match=words) as caught:
        thunder.jit(functional.silu, executors=[Operator(functional.silu, wrong)])(torch.randn(4))
    assert "torch.nn.functional.silu" in caught.value.what


def test_operator_that_fails_on_fake_tensors_needs_a_meta() -> None:
    x = torch.randn(4)
    with pytest.raises(BadRecipe, match="fails on tensors without data") as caught:
        thunder.jit(functional.silu, executors=[Operator(functional.silu, blind_silu)])(x)
    assert "`meta`" in caught.value.fix
    compiled = thunder.jit(functional.silu, executors=[Operator(functional.silu, blind_silu, meta=fast_silu)])
    torch.testing.assert_close(compiled(x), fast_silu(x))


def test_a_meta_of_another_dtype_is_refused_with_symbolic_sizes_too() -> None:
    wrong = Operator(functional.silu, blind_silu, meta=lambda input, inplace=False: input.double())  # noqa: A006
    compiled = thunder.jit(functional.silu, executors=[wrong], cache="symbolic values")
    with pytest.raises(BadRecipe, match=r"torch\.float64"):
        compiled(torch.randn(4))


def test_an_implementation_may_be_partial() -> None:
    operator = Operator(functional.silu, functools.partial(fast_silu))
    assert operator.name.endswith("partial")
    x = torch.randn(4)
    assert torch.equal(thunder.jit(functional.silu, executors=[operator])(x), fast_silu(x))


def test_operator_uses_its_derivative_or_pytorchs() -> None:
    own = Operator(functional.silu, blind_silu, meta=fast_silu, derivative=doubled_gradient, setup_context=save)
    for operator, expected in ((FAST, None), (own, lambda x: 2 * x)):
        compiled, x = thunder.jit(functional.silu, executors=[operator]), torch.randn(4, requires_grad=True)
        (gradient,) = torch.autograd.grad(compiled(x).sum(), x)
        eager = torch.autograd.grad(functional.silu(x).sum(), x)[0] if expected is None else expected(x.detach())
        torch.testing.assert_close(gradient, eager)
        assert operator.name in executors_of(compiled)


def test_operators_of_a_recipe_precede_its_executors() -> None:
    class Mine(Recipe):
        """A recipe with its own SiLU."""

        def setup_operators(self) -> tuple[Operator, ...]:
            return (FAST,)

    model, x = Swish(), torch.randn(2, 3)
    assert Mine().all_executors() == (FAST, "torch")
    assert (Recipe() + FAST).all_executors() == (FAST, "torch")
    assert (Mine() + Operator(functional.silu, fast_silu)).all_executors() == (FAST, "torch"), "equal ones are one"
    compiled = thunder.compile(model, Mine)
    torch.testing.assert_close(compiled(x), model(x))
    assert FAST.name in executors_of(compiled)


def test_loaded_artifact_runs_its_operators(tmp_path: Path) -> None:
    model, x = Swish(), torch.randn(2, 3)
    compiled = thunder.jit(model, executors=[FAST], symbolic=())
    with torch.no_grad():
        compiled(x)
        thunder.save(compiled, tmp_path / "kept")
        loaded = thunder.load(tmp_path / "kept", model, trusted_modules=(__name__,))
        torch.testing.assert_close(loaded(x), model(x))
        wider = torch.randn(5, 3, 3)
        torch.testing.assert_close(loaded(wider), model(wider))
    assert FAST.name in executors_of(loaded)


@pytest.mark.parametrize("given", [(3, fast_silu), (functional.silu, 3), (functional.silu, fast_silu, 3)])
def test_operator_that_is_not_callable_is_refused(given: tuple[Any, ...]) -> None:
    with pytest.raises(WrongInputs, match="of an operator is 3, which cannot be called"):
        Operator(*given)
