"""Mistakes in calls of operators and transforms that take functions: each raises the same error as eager PyTorch."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, vmap
from torch._higher_order_ops import associative_scan, scan
from torch._higher_order_ops.map import map as map_slices
from torch.compiler import nested_compile_region
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    stack_module_state,
    vjp,
)
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.checkpoint import checkpoint

import thunder_core as thunder
from thunder_core.foundation.tested_versions import release_of

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")

X = torch.linspace(-1.0, 2.0, 12).view(4, 3)
Z = torch.zeros(3)
QUERY = torch.ones(1, 2, 4, 8)
LINEAR = nn.Linear(3, 3)


class Text(torch.autograd.Function):
    """A function that does not return a tensor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        return x.nothing

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class Excessive(torch.autograd.Function):
    """A function whose backward returns too many gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient, gradient


@torch.library.custom_op("thunder_tests::quadrupled", mutates_args=())
def quadrupled(x: Tensor) -> Tensor:
    return x * 4


def combined(function: Callable[[Tensor, Tensor], Any], x: Tensor) -> Any:
    return associative_scan(function, x, 0, combine_mode="generic")


def checkpointed(function: Any, x: Tensor, **options: Any) -> Any:
    return checkpoint(function, x, use_reentrant=True, **options)


def number(*args: Tensor) -> int:
    return 3


MISTAKES: dict[str, Callable[[Tensor], Any]] = {
    "cond: other arguments": lambda x: torch.cond(x.sum() > 0, torch.add, torch.cos, (x,)),
    "cond: operands": lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, x),
    "cond: predicate": lambda x: torch.cond(None, torch.sin, torch.cos, (x,)),
    "cond: device": lambda x: torch.cond(x.sum() > 0, lambda x: x.to("meta"), torch.cos, (x,)),
    "cond: strides": lambda x: torch.cond(x.sum() > 0, lambda x: (x.T * 1).double(), lambda x: x.T.contiguous(), (x,)),
    "scan: function": lambda x: scan(x, Z, x),
    "scan: dtype": lambda x: scan(lambda c, y: ((c + y).double(), c * 1), Z, x),
    "scan: shape": lambda x: scan(lambda c, y: (torch.cat([c, c]), c * 1), Z, x),
    "scan: more": lambda x: scan(lambda c, y: ({"a": c["a"] + y, "b": y * 1}, y * 1), {"a": Z}, x),
    "scan: one result": lambda x: scan(lambda c, y: c + y, Z, x),
    "scan: number": lambda x: scan(lambda c, y: (3.0, c * 1), Z, x),
    "scan: row of a number": lambda x: scan(lambda c, y: (c + y, 3), Z, x),
    "scan: start of a number": lambda x: scan(lambda c, y: (c + 1, y * 1), 0, x),
    "scan: dimension": lambda x: scan(lambda c, y: (c + y, c * 1), Z, x, dim=5),
    "scan: no slices": lambda x: scan(lambda c, y: (c + y, c * 1), Z, x[:0]),
    "map: function": lambda x: map_slices(x, x),
    "map: text": lambda x: map_slices(lambda y: (y * 2, "a"), x),
    "map: number": lambda x: map_slices(number, x),
    "map: slices": lambda x: map_slices(torch.sin, 3),
    "map: lengths": lambda x: map_slices(lambda y: y[0] * y[1], (x, x[:2])),
    "map: no slices": lambda x: map_slices(torch.sin, x[:0]),
    "associative_scan: function": lambda x: combined(x, x),
    "associative_scan: structure": lambda x: combined(lambda a, b: (a + b, a), x),
    "associative_scan: shape": lambda x: combined(lambda a, b: (a + b)[:1], x),
    "associative_scan: None": lambda x: combined(lambda a, b: None, x),
    "associative_scan: dimension": lambda x: associative_scan(torch.add, x, 7, combine_mode="generic"),
    "associative_scan: mode": lambda x: associative_scan(torch.add, x, 0, combine_mode="other"),
    "associative_scan: device": lambda x: associative_scan(torch.add, x, 0),
    "flex_attention: function": lambda x: flex_attention(QUERY, QUERY, QUERY, x),
    "checkpoint: function": lambda x: checkpoint(x, x, use_reentrant=False),
    "checkpoint: keywords": lambda x: checkpointed(lambda x, k: x * k, x, k=3),
    "Function: its own error": lambda x: Text.apply(x),
    "Function: gradients": lambda x: torch.autograd.grad(Excessive.apply(x.requires_grad_()).sum(), x),
    "vmap: function": lambda x: vmap(x)(x),
    "vmap: number": lambda x: vmap(number)(x),
    "vmap: None": lambda x: vmap(lambda y: None)(x),
    "vmap: out_dims": lambda x: vmap(lambda y: (y, y), out_dims=(0, 0, 0))(x),
    "grad: auxiliary": lambda x: grad(lambda y: y.sum(), has_aux=True)(x),
    "grad_and_value: function": lambda x: grad_and_value(x)(x),
    "grad_and_value: shape": lambda x: grad_and_value(lambda y: y)(x),
    "vjp: function": lambda x: vjp(x, x),
    "vjp: number": lambda x: vjp(number, x),
    "vjp: structure": lambda x: vjp(torch.sin, x)[1]((x, x)),
    "vjp: shape": lambda x: vjp(torch.sin, x)[1](x[:2]),
    "jvp: function": lambda x: jvp(x, (x,), (x,)),
    "jvp: number": lambda x: jvp(number, (x,), (x,)),
    "jvp: no tuple": lambda x: jvp(torch.sin, x, x),
    "jvp: shape": lambda x: jvp(torch.sin, (x,), (x[:2],)),
    "jacrev: function": lambda x: jacrev(x)(x),
    "jacrev: number": lambda x: jacrev(number)(x),
    "jacrev: dtype": lambda x: jacrev(torch.abs)(x.long()),
    "jacfwd: function": lambda x: jacfwd(x)(x),
    "jacfwd: number": lambda x: jacfwd(number)(x),
    "hessian: function": lambda x: hessian(x)(x),
    "hessian: number": lambda x: hessian(number)(x),
    "linearize: function": lambda x: linearize(x, x),
    "functional_call: name": lambda x: functional_call(LINEAR, {"other": x}, (x,), strict=True),
    "functional_call: function": lambda x: functional_call(torch.sin, {}, (x,)),
    "functional_call: shape": lambda x: functional_call(LINEAR, {"weight": x[:2, :2]}, (x,)),
    "stack_module_state: nothing": lambda x: stack_module_state([]),
    "stack_module_state: classes": lambda x: stack_module_state([LINEAR, nn.Linear(3, 3).eval(), nn.Tanh()]),
    "nested_compile_region: function": lambda x: nested_compile_region(x)(x),
    "custom_op: type": lambda x: quadrupled("a"),
    "custom_op: arguments": lambda x: quadrupled(x, x),
}


# The default mode of `associative_scan` has a result on CPUs since PyTorch 2.14.
NOT_YET_TRACED = ("associative_scan: device",)


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_raise_the_error_of_eager_at_the_users_line(name: str) -> None:
    program = MISTAKES[name]
    try:
        expected = program(X.clone())
    except Exception as error:
        eagers_error = error
    else:  # a later release of PyTorch allows it
        if name in NOT_YET_TRACED:
            pytest.xfail("PyTorch 2.14 allows it, but the program is refused")
        torch.testing.assert_close(thunder.jit(program)(X.clone()), expected)
        assert (release_of(torch.__version__) or (0, 0)) >= (2, 14)
        return
    with pytest.raises(type(eagers_error)) as caught:
        thunder.jit(program)(X.clone())
    assert first_words(caught.value) == first_words(eagers_error)
    assert any(frame.filename == __file__ for frame in traceback.extract_tb(caught.value.__traceback__)[1:])


def first_words(error: BaseException) -> str:
    """Return the beginning of an error's first line, because the end may contain addresses."""
    return str(error).partition("\n")[0][:40]


def test_slices_of_different_lengths_are_reported() -> None:
    program = lambda x: scan(lambda c, y: (c + y[0], c * 1), Z, (x, x[:2]))  # noqa: E731
    for run in (program, thunder.jit(program)):
        with pytest.raises((IndexError, RuntimeError), match=r"index 2 .*out of|same scan dimension size"):
            run(X)
