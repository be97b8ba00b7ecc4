"""Programs that ask for the values of tensors, traced for the values that they get: eager's results, whatever comes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import thunder_core as thunder
from thunder_core.errors import BadOption, DataDependent, SharpEdgeError

X = torch.tensor([1.0, -2.0, 3.0])
CALLS = (X, -X, X, X + 1, -X)


def after_a_write(x: Tensor) -> Tensor:
    y = x * 2
    y.add_(1)
    return y if y.sum() > 8 else x


def after_a_seed(x: Tensor) -> Tensor:
    before = torch.get_rng_state()
    torch.manual_seed(7)
    drawn = torch.rand(8)
    torch.set_rng_state(before)
    return drawn[drawn > torch.rand(())].sum() * x


def counted(x: Tensor) -> Tensor:
    total = x
    while total.sum() < 10:
        total = total + 1
    return total


PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "a branch": lambda x: x if x.sum() > 0 else -x,
    "a loop": counted,
    "a number": lambda x: x * x.sum().item(),
    "a list": lambda x: x * max(x.tolist()),
    "a comparison": lambda x: x if torch.equal(x, x.abs()) else x.abs(),
    "a size": lambda x: x.nonzero(),
    "a mask": lambda x: x[x > 0].sum() * 2,
    "a mask of random numbers": lambda x: torch.rand(8)[torch.rand(8) > 0.5].sum() * x,
    "several results": lambda x: torch.unique(x > 0, return_counts=True),
    "a start": lambda x: x.narrow(0, (x[0] > 0).long(), 2),
    "sections": lambda x: torch.tensor_split(x, (x > 0).long().sum()),
    "after a write": after_a_write,
    "after a seed": after_a_seed,
    "a value of its own": lambda x: torch.combinations(x, 2),
    "a class of results": lambda x: torch.linalg.lstsq(torch.eye(3) + x, x[:, None]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_call_gives_what_eager_gives(name: str) -> None:
    program = PROGRAMS[name]
    compiled = thunder.jit(program, data_dependent="guard")
    for x in CALLS:
        torch.manual_seed(0)
        wanted, state = program(x), torch.get_rng_state()
        torch.manual_seed(0)
        found = compiled(x)
        assert type(found) is type(wanted)
        torch.testing.assert_close(found, wanted)
        assert torch.equal(torch.get_rng_state(), state)
    assert thunder.cache_hits(compiled) >= 2


@pytest.mark.parametrize("name", ["a branch", "a number", "a mask", "a start", "after a write", "a value of its own"])
def test_gradients_are_eagers(name: str) -> None:
    program, compiled = PROGRAMS[name], thunder.jit(PROGRAMS[name], data_dependent="guard")
    for x in CALLS:
        one, other = x.clone().requires_grad_(), x.clone().requires_grad_()
        (wanted,) = torch.autograd.grad(program(one).square().sum(), one)
        (found,) = torch.autograd.grad(compiled(other).square().sum(), other)
        torch.testing.assert_close(found, wanted)


def test_a_result_that_is_a_view_stays_one() -> None:
    def doubles(x: Tensor) -> Tensor:
        y = x.clone()
        y.narrow(0, (x[0] > 0).long(), 2).mul_(2)
        return y

    compiled = thunder.jit(doubles, data_dependent="guard")
    assert all(torch.equal(compiled(x), doubles(x)) for x in CALLS)


def test_the_reason_names_the_values() -> None:
    compiled = thunder.jit(PROGRAMS["a branch"], data_dependent="guard")
    compiled(X), compiled(-X), compiled(X)
    assert thunder.recompile_reasons(compiled) == ["a value that the program asks a tensor for: was True, is False"]
    assert (thunder.cache_misses(compiled), thunder.cache_hits(compiled)) == (2, 1)


def test_nothing_is_done_twice() -> None:
    seen: list[float] = []

    def program(x: Tensor) -> Tensor:
        seen.append(1.0)
        y = x * 2 if x.sum() > 0 else x
        x.add_(0.5)
        return y

    compiled = thunder.jit(program, data_dependent="guard")
    x, same = X.clone(), X.clone()
    for sign in (1, -1, 1):
        x, same = x * sign, same * sign
        torch.testing.assert_close(compiled(x), program(same), rtol=0, atol=0)
        torch.testing.assert_close(x, same, rtol=0, atol=0)
    assert len(seen) == 6


def test_a_value_behind_a_write_to_an_input_is_refused() -> None:
    def program(x: Tensor) -> Tensor:
        x.add_(1)
        return x if x.sum() > 0 else -x

    x = X.clone()
    with pytest.raises(DataDependent, match="written to an input"):
        thunder.jit(program, data_dependent="guard")(x)
    assert torch.equal(x, X)


def test_it_is_a_sharp_edge_and_has_to_be_asked_for() -> None:
    with pytest.raises(SharpEdgeError, match="asks for the value of a tensor"):
        thunder.jit(PROGRAMS["a branch"], data_dependent="guard", sharp_edges="error")(X)
    with pytest.raises(DataDependent):
        thunder.jit(PROGRAMS["a branch"])(X)
    with pytest.raises(BadOption):
        thunder.jit(PROGRAMS["a branch"], data_dependent="perhaps")  # type: ignore[arg-type]
