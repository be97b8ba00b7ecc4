"""Patterns: the spellings that they match, the lines that they must not claim, and invalid patterns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import thunder_core as thunder
from tests.patterns.claims import Function, X, Y, Z, claimed_names, example, norm, scaled_exp
from thunder_core.backend.claiming.claim import claim
from thunder_core.backend.claiming.executor import OperatorExecutor
from thunder_core.backend.patterns.outcome import describe_layout
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.tree import replace_leaves

SPELLINGS: dict[str, tuple[Function, Function]] = {
    "operands the other way": (lambda x, y: x * y + 1, lambda x, y: 1 + y * x),
    "functions and methods": (lambda x: x.mul(2).exp(), lambda x: torch.exp(torch.mul(x, 2))),
    "keywords": (lambda x: x.mean(-1, True).exp(), lambda x: torch.mean(x, dim=-1, keepdim=True).exp()),
    "dimensions from the front": (lambda x: x.sum(-1).exp(), lambda x: x.sum(2).exp()),
    "transposed from the front": (lambda x: x.transpose(-1, -2).exp(), lambda x: x.transpose(1, 2).exp()),
    "powers": (lambda x: x.pow(2) + 1, lambda x: x**2 + 1),
    "squares": (lambda x: x.square() + 1, lambda x: torch.pow(x, 2.0) + 1),
    "whole and real numbers": (lambda x: (x * 2).exp(), lambda x: (x * 2.0).exp()),
    "sizes": (lambda x: x.view(2, -1).exp(), lambda x: x.view(2, 24).exp()),
    "sizes in a tuple": (lambda x: x.view(2, 24).exp(), lambda x: x.view((2, -1)).exp()),
    "reshape": (lambda x: x.reshape(2, 24).exp(), lambda x: x.view(2, 24).exp()),
    "slices": (lambda x: x[..., : x.shape[-1] // 2].exp(), lambda x: x[:, :, 0:4].exp()),
    "to the end": (lambda x: x[..., 4:].exp(), lambda x: x[:, :, 4:8].exp()),
    "from the end": (lambda x: x[..., 4:].exp(), lambda x: x[:, :, -4:].exp()),
    "unpacked shapes": (lambda x: _merged(x), lambda x: x.view(6, 8).exp()),
    "conversions that change nothing": (lambda x: x.to(torch.float32).exp().type_as(x) * 2, lambda x: x.exp() * 2),
    "conversions": (lambda x: x.to(torch.float64).exp(), lambda x: x.double().exp()),
    "defaults": (lambda x: functional.silu(x) + 1, lambda x: functional.silu(input=x, inplace=False) + 1),
    "softmax": (lambda x: x.softmax(-1) * 2, lambda x: functional.softmax(x, dim=-1) * 2),
    "reflected": (lambda x: (1 - x).exp(), lambda x: (1 - x).exp()),
    "comparisons": (lambda x, y: (x < y) * 2, lambda x, y: (x < y) * 2),
    "comparisons mirrored": (lambda x, y: torch.lt(x, y) * 2, lambda x, y: y.gt(x) * 2),
    "quotients": (lambda x: (1 / x).exp(), lambda x: (1 / x).exp()),
    "one of several": (lambda x: x.chunk(2, -1)[1].exp(), lambda x: _second(x)),
    "unpacked": (lambda x: _second(x), lambda x: x.chunk(2, dim=2)[1].exp()),
    "joined": (lambda x: torch.cat((x, -x), dim=-1).exp(), lambda x: torch.cat([x, x.neg()], 2).exp()),
    "transposed by attribute": (lambda x: x.mT.exp(), lambda x: x.mT.exp()),
    "a branch on metadata": (lambda x: _wide_exp(x), lambda x: x.exp() + 1),
    "dropout of nothing": (lambda x: functional.dropout(x.exp(), 0.5, training=False) * 2, lambda x: x.exp() * 2),
    "an assertion about shapes": (lambda x: _checked(x), lambda x: x.exp() + 1),
    "constants made": (lambda x: x.new_zeros(x.shape[-1]) + x, lambda x: x.new_zeros(8) + x),
    "several dimensions": (lambda x: x.sum((0, 1)).exp(), lambda x: torch.sum(x, [0, -2]).exp()),
    "the same twice": (lambda x: (x + 1) * 2 + (x + 1) * 3, lambda x: (x + 1) * 2 + (x + 1) * 3),
}


def _merged(x: Tensor) -> Tensor:
    first, second, third = x.shape
    return x.view(first * second, third).exp()


def _second(x: Tensor) -> Tensor:
    _, second = x.chunk(2, dim=-1)
    return second.exp()


def _wide_exp(x: Tensor) -> Tensor:
    if x.dtype == torch.bfloat16:
        return x.float().exp() + 1
    return x.exp() + 1


def _checked(x: Tensor) -> Tensor:
    assert x.shape[-1] % 2 == 0
    if x.ndim not in (3, 4):
        raise ValueError("another number of dimensions")
    return x.exp() + 1


@pytest.mark.parametrize("name", SPELLINGS)
def test_all_spellings_of_a_computation_match(name: str) -> None:
    pattern, program = SPELLINGS[name]
    args = (X, Y)[: pattern.__code__.co_argcount]
    assert len(claimed_names(pattern, program, *args)) == 1, claimed_names.refused


def test_numbers_are_found() -> None:
    seen = []

    def ours(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        seen.append(eps)
        return norm(x, weight, eps)

    assert len(claimed_names(norm, lambda x, w: norm(norm(x, w, 1e-6), w, 1e-5), X, Z, by=ours)) == 2
    assert set(seen) == {1e-6, 1e-5}


def test_parameters_with_a_default_are_constants() -> None:
    def scaled(x: Tensor, by: float = 2.0) -> Tensor:
        return (x * by).exp()

    program = lambda x: (x * 2.0).exp() + (x * 3.0).exp()  # noqa: E731
    assert len(claimed_names(scaled, program, X, by=lambda x: (x * 2.0).exp())) == 1


def test_the_claimed_line_shows_the_operations_that_it_replaces() -> None:
    executor = OperatorExecutor("mine")
    executor.replaces(norm)(norm)

    def program(x: Tensor, w: Tensor) -> Tensor:
        return norm(x + 1, w, 1e-6) * 2

    compiled = thunder.jit(program, executors=[executor])
    compiled(X, Z)
    trace = thunder.last_traces(compiled)[-2]
    (line,) = [bsym for bsym in trace.bound_symbols if bsym.executor == "mine"]
    assert [sub.symbol.short_name for sub in line.subsymbols] == ["pow", "mean", "add", "rsqrt", "mul", "mul"]
    assert line.source is not None
    assert line.source.function == "norm"
    assert all(f"#   {name}" in str(trace) for name in ("t1 = t0 ** 2", "t4 = torch.rsqrt(t3)"))
    assert [bsym.symbol.short_name for bsym in trace.at_level("aten")] == [
        *("Tensor", "Tensor_Scalar", "dim", "Tensor", "default", "Tensor", "Tensor", "Tensor")
    ]


def test_a_result_may_be_read_before_the_stretch_ends() -> None:
    def both(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        total = x + y
        return norm(total, w, 1e-6), total

    def program(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        total = x + y
        early = total.exp()
        return early, norm(total, w, 1e-6), total

    assert claimed_names(both, program, X, Y, Z) == ["both"]


def test_views_with_other_readers_stay() -> None:
    def doubled(x: Tensor, w: Tensor) -> Tensor:
        return x * w.unsqueeze(0) + 1

    def program(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        return (x * w.unsqueeze(0) + 1) - (y * w.unsqueeze(0) + 1)

    assert claimed_names(doubled, program, X, Y, Z) == ["doubled", "doubled"]


def test_views_of_a_result_with_other_readers_stay_after_the_claimed_line() -> None:
    def turned(x: Tensor) -> tuple[Tensor, Tensor]:
        total = x * 2
        return total, total.mT.exp()

    def program(x: Tensor) -> tuple[Tensor, ...]:
        total = x * 2
        side = total.mT
        return total, side.exp(), side + 1

    assert claimed_names(turned, program, X) == ["turned"]


def test_a_tensor_may_match_two_parameters() -> None:
    assert len(claimed_names(lambda x, y: (x * y).exp(), lambda x: (x * x).exp(), X)) == 1


def test_earlier_patterns_and_executors_come_first() -> None:
    whole, part, first = (OperatorExecutor(name) for name in ("whole", "part", "first"))
    whole.replaces(lambda x: (x * 2).exp() + 1)(lambda x: (x * 2).exp() + 1)
    part.replaces(lambda x: (x * 2).exp())(lambda x: (x * 2).exp())
    first.implements(torch.exp)(lambda x: torch.exp(x))

    def runs(*executors: OperatorExecutor) -> set[str]:
        compiled = thunder.jit(lambda x: torch.exp(x * 2) + 1, executors=executors)
        torch.testing.assert_close(compiled(X), torch.exp(X * 2) + 1)
        return {b.executor for b in thunder.last_traces(compiled)[-2].bound_symbols}

    assert runs(whole, part) == {"whole"}
    assert runs(part, whole) == {"part", "torch"}
    assert runs(first, whole, part) == {"first", "torch"}


DIFFERENT: dict[str, tuple[Function, Function]] = {
    "another constant": (lambda x: x.pow(2) + 1, lambda x: x.pow(3) + 1),
    "another dimension": (lambda x: x.sum(-1).exp(), lambda x: x.sum(-2).exp()),
    "another default": (lambda x: functional.gelu(x) + 1, lambda x: functional.gelu(x, approximate="tanh") + 1),
    "operands of a difference": (lambda x, y: (x - y.exp()) * 2, lambda x, y: (y.exp() - x) * 2),
    "the new dimension": (lambda x: x.unsqueeze(-1).exp(), lambda x: x.unsqueeze(2).exp()),
    "two numbers for one": (lambda x, n: (x + n) * n, lambda x: (x + 1) * 2),
    "two tensors for one": (lambda x: (x + 1) * x, lambda x, y: (x + 1) * y),
    "a number with the other zero": (lambda x: (x * 0.0).exp(), lambda x: (x * -0.0).exp()),
    "the other comparison": (lambda x, y: (x < y) * 2, lambda x, y: (y < x.exp()) * x),
    "a whole number for a real one": (lambda x: (x > 0) * 1, lambda x: (x > 0) * 1.0),
    "a conversion": (lambda x: x.exp() * 2, lambda x: x.exp().to(torch.float64) * 2),
    "less": (lambda x: x.exp() * 2 + 1, lambda x: x * 2 + 1),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_programs_that_differ_do_not_match(name: str) -> None:
    pattern, program = DIFFERENT[name]
    assert claimed_names(pattern, program, *(X, Y)[: program.__code__.co_argcount]) == []


def test_a_pattern_is_still_its_function() -> None:
    again = thunder.pattern(scaled_exp)
    assert torch.equal(again(X), scaled_exp(X))
    assert thunder.pattern(again) is again


def test_strides_of_dimensions_of_size_1_do_not_count() -> None:
    """A line that was recorded before its program knew that there is one token has such strides."""

    def recorded(leaf: Any) -> Any:
        is_computed = isinstance(leaf, TensorProxy) and leaf.name in ("t1", "t2")
        return replace(leaf, stride=(32, 8, 8, 1)) if is_computed else leaf

    def earlier(bsym: BoundSymbol) -> BoundSymbol:
        args, output = replace_leaves((bsym.args, bsym.output), recorded)
        return replace(bsym, args=args, output=output, subsymbols=tuple(map(earlier, bsym.subsymbols)))

    compiled = thunder.jit(lambda x: (x.transpose(1, 2) * 2 + 1).flatten(2), executors=["torch"])
    compiled(example(2, 1, 4, 8))
    trace = thunder.last_traces(compiled)[-3]
    executor = OperatorExecutor("mine")
    pattern = thunder.pattern(lambda x: x * 2 + 1)
    executor.replaces(pattern)(pattern.function)
    for each in (trace, trace.having(map(earlier, trace.bound_symbols), made_by="earlier")):
        assert [bsym.executor for bsym in claim(each, [executor]).bound_symbols].count("mine") == 1


def test_strides_that_may_mean_channels_last_count() -> None:
    def proxy(shape: tuple[int, ...], stride: tuple[int, ...]) -> TensorProxy:
        return TensorProxy("x", shape, stride, torch.float32, torch.device("cpu"), False)

    pairs = {
        ((1, 4, 1, 8), (32, 8, 32, 1), (32, 8, 8, 1)): True,
        ((2, 1, 8), (8, 16, 1), (8, 8, 1)): True,
        ((2, 2, 8), (8, 16, 1), (16, 8, 1)): False,
        ((2, 4, 1, 1), (4, 1, 1, 1), (4, 1, 4, 4)): False,
        ((2, 1, 4, 8), (32, 32, 8, 1), (32, 1, 8, 1)): False,
    }
    for (shape, *strides), is_equal in pairs.items():
        first, second = (describe_layout(proxy(shape, stride)) for stride in strides)
        assert (first == second) == is_equal
