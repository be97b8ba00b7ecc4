"""PyTorch's own compilers, tracers, transforms and higher-order operators are traced through or refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._functorch.aot_autograd import aot_function
from torch._ops import _higher_order_ops as operators
from torch.autograd import forward_ad

import thunder_core as thunder
from thunder_core.foundation.errors import CannotReplay, OperationFailed, RecompileWarning
from thunder_core.frontend.acquire.lookasides.operators.higher_order import HANDLERS

X = torch.tensor([1.0, 2.0, 3.0])
LINEAR = nn.Linear(3, 3)
STEP = [1.0]


# ---- functions that torch.compile returned --------------------------------------------------------------------------


def stepped(x: Tensor) -> Tensor:
    return x + STEP[0]


BEFORE = torch.compile(stepped, backend="eager")
COMPILED_LINEAR = torch.compile(LINEAR, backend="eager")
COMPILED_INSIDE = nn.Linear(3, 3)
COMPILED_INSIDE.compile(backend="eager")

TRACED_THROUGH: dict[str, Callable[[Tensor], Any]] = {
    "compiled in the program": lambda x: torch.compile(stepped, backend="eager", fullgraph=True)(x) * 2,
    "compiled before": lambda x: BEFORE(x) * 2,
    "compiled twice": lambda x: torch.compile(BEFORE, backend="eager")(x),
    "a module": lambda x: COMPILED_LINEAR(x),
    "a module compiled in the program": lambda x: torch.compile(LINEAR, backend="eager")(x),
    "a module that compiled itself": lambda x: COMPILED_INSIDE(x),
    "disabled": lambda x: torch.compiler.disable(stepped)(x),
    "optimized": lambda x: torch._dynamo.optimize("eager")(stepped)(x),
    "a region": lambda x: torch.compiler.nested_compile_region(stepped)(x),
    "a graph break": lambda x: (torch._dynamo.graph_break(), stepped(x))[1],
    "a condition that is known": lambda x: torch.cond(x.shape[0] > 2, torch.sin, torch.cos, (x,)),
}


@pytest.mark.filterwarnings("ignore:Pred is a Python constant")
@pytest.mark.parametrize("name", TRACED_THROUGH)
def test_function_of_a_foreign_compiler_is_traced_through(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = TRACED_THROUGH[name]
    monkeypatch.setattr(torch._dynamo.convert_frame, "compile_frame", None)  # Dynamo does not take part
    compiled = thunder.jit(program)
    found = [compiled(X), compiled(X * 2)]
    assert thunder.cache_misses(compiled) == 1
    STEP[0] = 5.0
    found.append(compiled(X))
    monkeypatch.undo()
    wanted = [program(X)]
    STEP[0] = 1.0
    wanted = [program(X), program(X * 2), *wanted]
    torch.testing.assert_close(found, wanted)


# ---- calls that run functions without the tracer --------------------------------------------------------------------


def on_dual_numbers(x: Tensor) -> Tensor:
    with forward_ad.dual_level():  # here
        return forward_ad.unpack_dual(forward_ad.make_dual(x, x).sin()).tangent


class Chosen(torch.autograd.Function):
    """An operation whose forward runs natively and calls a higher-order operator."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.ops.higher_order.cond(x.sum() > 0, torch.sin, torch.cos, (x,))


REFUSED: dict[str, Callable[[Tensor], Any]] = {
    "functionalize": lambda x: torch.func.functionalize(torch.sin)(x),  # here
    "forward_ad": on_dual_numbers,
    "jit.trace": lambda x: torch.jit.trace(torch.sin, (x,))(x),  # here
    "jit.freeze": lambda x: torch.jit.freeze(torch.jit.script(nn.ReLU().eval()))(x),  # here
    "export": lambda x: torch.export.export(LINEAR, (x,)).module()(x),  # here
    "aot_function": lambda x: aot_function(torch.sin, fw_compiler=lambda graph, inputs: graph)(x),  # here
    "explain": lambda x: torch._dynamo.explain(torch.sin)(x),  # here
    "in native code": lambda x: Chosen.apply(x.requires_grad_()),  # here
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_call_that_bypasses_the_tracer_is_refused_with_the_line(name: str) -> None:
    with pytest.raises(OperationFailed if name == "in native code" else CannotReplay) as caught:
        thunder.jit(REFUSED[name], data_dependent="error")(X)
    assert caught.value.where is not None
    assert caught.value.where.filename == __file__
    line = Path(__file__).read_text(encoding="utf-8").splitlines()[caught.value.where.lineno - 1]
    assert line.endswith("# here") or "higher_order.cond" in line


@pytest.mark.parametrize(("name", "instead"), [("functionalize", "the transform Functionalize"), ("forward_ad", "jvp")])
def test_refusal_names_the_replacement(name: str, instead: str) -> None:
    with pytest.raises(CannotReplay, match=instead):
        thunder.jit(REFUSED[name], data_dependent="error")(X)


def test_a_refusal_cannot_be_swallowed() -> None:
    def careful(x: Tensor) -> Tensor:
        try:
            return torch.func.functionalize(torch.sin)(x)
        except Exception:
            return x

    with pytest.raises(CannotReplay, match=r"torch\.func"):
        thunder.jit(careful, data_dependent="error")(X)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", ["functionalize", "forward_ad", "jit.trace", "export"])
def test_eager_makes_calls_that_bypass_the_tracer(name: str) -> None:
    compiled = thunder.jit(REFUSED[name])
    with pytest.warns(RecompileWarning, match="which runs a function that the tracer cannot see"):
        torch.testing.assert_close(compiled(X), REFUSED[name](X))
    torch.testing.assert_close(compiled(X * 2), REFUSED[name](X * 2))


@pytest.mark.parametrize("name", sorted(operators.keys() - HANDLERS.keys()))
def test_every_higher_order_operator_is_refused_by_its_name(name: str) -> None:
    operator = operators[name]
    with pytest.raises(OperationFailed, match=f"`{name}` is a higher-order operator") as caught:
        thunder.jit(lambda x: operator(torch.sin, x), data_dependent="error")(X)
    assert caught.value.where is not None


@torch.library.custom_op("thunder_tests::unfaked", mutates_args=())
def unfaked(x: Tensor) -> Tensor:
    return x * 2


def test_operator_without_a_fake_implementation_names_the_missing_part() -> None:
    with pytest.raises(OperationFailed, match=r"unfaked.* has no fake implementation") as caught:
        thunder.jit(lambda x: unfaked(x), data_dependent="error")(X)
    assert caught.value.where is not None
    assert "register_fake" in caught.value.fix
