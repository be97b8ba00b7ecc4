"""Calls are printed as a person would write them."""

from __future__ import annotations

import pytest
import torch

from thunder_core.tracing.capture.torch_facts.symbols import symbol_of
from thunder_core.tracing.ir.forms import expression
from thunder_core.tracing.ir.literal import Scope
from thunder_core.tracing.ir.proxy import Proxy
from thunder_core.tracing.ir.symbol import BoundSymbol, Symbol

a, b = Proxy("a"), Proxy("b")


def written(function: object, *args: object, **kwargs: object) -> str:
    return expression(BoundSymbol(symbol_of(function), args, kwargs, None), Scope())


@pytest.mark.parametrize(
    ("text", "function", "args"),
    [
        ("a + b", torch.Tensor.add, (a, b)),
        ("a * (-2)", torch.Tensor.__mul__, (a, -2)),
        ("2 - a", torch.Tensor.__rsub__, (a, 2)),
        ("2 / a", torch.Tensor.__rdiv__, (a, 2)),
        ("a.__rtruediv__(b)", torch.Tensor.__rdiv__, (a, b)),  # a reciprocal and a product, which differs from `b / a`
        ("torch._unsafe_masked_index(a, b, [], 0)", torch._unsafe_masked_index, (a, b, [], 0)),
        ("a ** 0.5", torch.Tensor.pow, (a, 0.5)),
        ("-a", torch.Tensor.neg, (a,)),
        ("a @ b", torch.Tensor.__matmul__, (a, b)),
        ("a <= b", torch.Tensor.__le__, (a, b)),
        ("a[..., :8]", torch.Tensor.__getitem__, (a, (..., slice(None, 8)))),
        ("a[None, 1:, ::2, -1]", torch.Tensor.__getitem__, (a, (None, slice(1, None), slice(None, None, 2), -1))),
        ("a[b]", torch.Tensor.__getitem__, (a, b)),
        ("a[0,]", torch.Tensor.__getitem__, (a, (0,))),
        ("a[()]", torch.Tensor.__getitem__, (a, ())),
        ("a[0] = b", torch.Tensor.__setitem__, (a, 0, b)),
        ("a.transpose(1, 2)", torch.Tensor.transpose, (a, 1, 2)),
        ("a.data", torch.Tensor.data.__get__, (a,)),
        ("torch.cat((a, b))", torch.cat, ((a, b),)),
        ("torch.nn.functional.silu(a)", torch.nn.functional.silu, (a,)),
        ("torch.ops.aten.mm.default(a, b)", torch.ops.aten.mm.default, (a, b)),
    ],
)
def test_calls_are_printed_in_natural_form(text, function, args):
    assert written(function, *args) == text


def test_call_with_keywords_is_printed_as_a_call():
    assert written(torch.Tensor.add, a, b, alpha=2) == "a.add(b, alpha=2)"


def test_a_function_without_a_name_is_a_constant():
    scope = Scope()
    mine = lambda a: a  # noqa: E731
    bsym = BoundSymbol(Symbol("tests.<locals>.mine", mine), (a,), {}, None)
    text = expression(bsym, scope)
    assert text == f"{next(iter(scope.constants))}(a)"
    assert list(scope.constants.values()) == [mine]
