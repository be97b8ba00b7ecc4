"""Matches and replacements that would change a program are refused, with the reason."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import thunder_core as thunder
from tests.patterns.claims import Function, X, claimed_names, example, norm, scaled_exp
from thunder_core.backend.claiming.executor import OperatorExecutor
from thunder_core.foundation.errors import BadPattern


def read_outside(x: Tensor) -> Tensor:
    inner = x * 2
    return inner.exp() + 1 - inner


def returned(x: Tensor) -> tuple[Tensor, Tensor]:
    inner = x * 2
    return inner.exp() + 1, inner


def written_between(x: Tensor) -> Tensor:
    inner = x * 2
    x.add_(1)
    return inner.exp() + 1


def intermediate_written(x: Tensor) -> Tensor:
    inner = x * 2
    inner.add_(1)
    return inner.exp() + 1


def grad_switched(x: Tensor) -> Tensor:
    with torch.no_grad():
        inner = x * 2
    return inner.exp() + 1


def random_between(x: Tensor) -> Tensor:
    inner = x * 2
    torch.manual_seed(0)
    noise = torch.rand(8)
    return inner.exp() + 1 - noise * 0


def in_autocast(x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return (x * 2).exp() + 1


ILLEGAL: dict[Function, str] = {
    read_outside: "is also read outside of the match",
    returned: "is also read outside of the match",
    written_between: "in between has an effect",
    intermediate_written: "",
    grad_switched: "the grad mode changes in between",
    random_between: "in between has an effect",
    in_autocast: "",
}


@pytest.mark.parametrize("program", ILLEGAL, ids=lambda program: program.__name__)
def test_illegal_matches_are_refused_with_the_reason(program: Function) -> None:
    assert claimed_names(scaled_exp, program, X.clone()) == []
    reason = ILLEGAL[program]
    assert not reason or [
        refusal for refusal in claimed_names.refused if reason in refusal and f"{program.__name__}:" in refusal
    ]


def test_in_autocast_and_after() -> None:
    assert claimed_names(scaled_exp, lambda x: in_autocast(x) + scaled_exp(x), X) == ["scaled_exp"]


def test_a_result_that_an_input_hangs_on() -> None:
    def both(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        doubled = x * 2
        return doubled + w, doubled

    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        doubled = x * 2
        return doubled + doubled.exp(), doubled

    assert claimed_names(both, program, X) == []
    assert "a result is read before the last input is computed" in claimed_names.refused[0]


REPLACEMENTS: dict[str, tuple[Function, str]] = {
    "another dtype": (lambda x: scaled_exp(x).double(), "returns f64[2, 3, 8]"),
    "another shape": (lambda x: scaled_exp(x)[None], "returns f32[1, 2, 3, 8]"),
    "other strides": (lambda x: scaled_exp(x.transpose(0, 1).contiguous()).transpose(0, 1), "with strides [8, 16, 1]"),
    "two results": (lambda x: (scaled_exp(x), x), "returns 2 tensors, the pattern one tensor"),
    "no tensor": (lambda x: None, "returns an object of class NoneType, not a tensor"),
    "its input": (lambda x: x, "share memory differently"),
    "a write": (lambda x: x.mul_(2).exp() + 1, "has an effect: torch.Tensor.mul_"),
    "random numbers": (lambda x: scaled_exp(x) + torch.rand(8) * 0, "has an effect: torch.rand"),
    "values": (lambda x: scaled_exp(x) if x.sum() > 0 else x, "reads the value of a tensor"),
    "a failure": (lambda x: scaled_exp(x).nothing, "AttributeError"),
}


@pytest.mark.parametrize("name", REPLACEMENTS)
def test_replacements_that_do_something_else(name: str) -> None:
    function, reason = REPLACEMENTS[name]
    assert claimed_names(scaled_exp, scaled_exp, X, by=function) == []
    assert [told for told in claimed_names.refused if reason in told], claimed_names.refused


def test_a_replacement_without_a_derivative_serves_inference_only() -> None:
    forward_only = lambda x: scaled_exp(x.detach())  # noqa: E731
    leaf = X.clone().requires_grad_()
    assert claimed_names(scaled_exp, lambda x: scaled_exp(x + 1), leaf, by=forward_only) == []
    assert "is also read outside" in claimed_names.refused[0]  # by the backward
    with torch.no_grad():
        assert len(claimed_names(scaled_exp, lambda x: scaled_exp(x + 1), leaf, by=forward_only)) == 1


def test_the_supports_check_decides() -> None:
    only_wide = lambda bsym: bsym.args[0].shape[-1] > 8  # noqa: E731
    assert claimed_names(scaled_exp, scaled_exp, X, supports=only_wide) == []
    assert "mine does not support the operands" in claimed_names.refused[0]
    assert len(claimed_names(scaled_exp, scaled_exp, example(2, 16), supports=only_wide)) == 1


def test_a_kernel_that_needs_data_declares_its_metadata() -> None:
    def kernel(x: Tensor) -> Tensor:
        return torch.from_numpy(x.numpy() * 2).exp() + 1

    assert claimed_names(scaled_exp, scaled_exp, X, by=kernel) == []
    assert "fails on tensors without data" in claimed_names.refused[0]
    assert claimed_names(scaled_exp, scaled_exp, X, by=kernel, meta=torch.empty_like) == ["kernel"]


OUTSIDE = torch.ones(8)


BAD: dict[str, tuple[Function, str]] = {
    "no parameter": (lambda: torch.ones(3), "takes no tensor"),
    "no tensor": (lambda n: 3, "returns something that it does not compute"),
    "numbers alone": (lambda: None, "returns something that it does not compute"),
    "a branch on a value": (lambda x: x + 1 if x.sum() > 0 else x, "branches on the value of a tensor"),
    "a value": (lambda x: x * x.max().item(), "reads the values of a tensor"),
    "a loop over a tensor": (lambda x: sum(row for row in x), "iterates over"),
    "nothing computed": (lambda x: x, "returns something that it does not compute"),
    "one result not computed": (lambda x, y: (x + y, x), "returns something that it does not compute"),
    "an input that is not reached": (
        lambda x, y: x.exp(),
        "the pattern '<lambda>' does not use its parameter y directly",
    ),
    "a write": (lambda x: x.add_(1), "writes to a tensor"),
    "a write by an operator": (lambda x: _adds(x), "writes to a tensor"),
    "a write by item": (lambda x: _writes_item(x), "writes to a tensor"),
    "a write by keyword": (lambda x: functional.relu(x, inplace=True), "writes to a tensor"),
    "out": (lambda x, y: torch.add(x, x, out=y), "writes to a tensor"),
    "another tensor": (lambda x: x + OUTSIDE, "uses a tensor that is not one of its parameters"),
    "dropout": (lambda x: functional.dropout(x * 2, 0.5), "draws random numbers"),
    "noise": (lambda x: x + torch.rand_like(x), "draws random numbers"),
    "state": (lambda x: _without_grad(x), "changes the state of the process"),
    "an unknown method": (lambda x: x.nothing(), "a tensor has no attribute 'nothing'"),
    "a size in C": (lambda x: x + torch.zeros(x.shape[-1]), "fails on placeholders: TypeError: zeros()"),
    "any number of arguments": (lambda *xs: xs[0] + 1, "takes a variable number of arguments"),
}


def _adds(x: Tensor) -> Tensor:
    x += 1
    return x * 2


def _writes_item(x: Tensor) -> Tensor:
    x[0] = 1
    return x * 2


def _without_grad(x: Tensor) -> Tensor:
    with torch.no_grad():
        return x * 2


@pytest.mark.parametrize("name", BAD)
def test_bad_patterns_are_refused_when_decorated(name: str) -> None:
    function, reason = BAD[name]
    with pytest.raises(BadPattern) as caught:
        thunder.pattern(function)
    assert reason in caught.value.what
    assert caught.value.fix
    assert caught.value.where is not None
    assert caught.value.where.filename == __file__


def test_replacements_that_cannot_be_called_are_refused() -> None:
    executor = OperatorExecutor("mine")
    with pytest.raises(BadPattern, match="missing a required argument"):
        executor.replaces(scaled_exp)(lambda x, y: x)
    with pytest.raises(BadPattern, match="too many positional arguments"):
        executor.replaces(norm)(lambda x: x)
