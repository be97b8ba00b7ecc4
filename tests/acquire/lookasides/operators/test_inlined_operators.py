"""Higher-order operators that only call their functions: the functions are interpreted and recorded inline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops import InvokeQuant, invoke_quant_packed
from torch._higher_order_ops.hints_wrap import hints_wrapper
from torch._higher_order_ops.out_dtype import out_dtype
from torch._higher_order_ops.strict_mode import strict_mode_op
from torch._ops import _higher_order_ops as operators

import thunder_core as thunder

register_hook_op = pytest.importorskip("torch._higher_order_ops.register_hook").register_hook_op  # since PyTorch 2.12

X = torch.linspace(-1.0, 1.0, 8).view(2, 4)
SCALE = {"by": 2.0}
GRAPH = torch.fx.symbolic_trace(lambda x: (x.sin() * 2,))


def scaled(x: Tensor) -> tuple[Tensor]:
    return (x.sin() * SCALE["by"],)


def cast(x: Tensor) -> Tensor:
    """Return a region under autocast as `torch.export` records it."""
    wrap: Any = operators["wrap_with_autocast"]
    result: Tensor = wrap("cpu", torch.bfloat16, True, True, lambda y: (y @ y.t(),), x)[0]
    return result


def to_int8(x: Tensor) -> Tensor:
    return (x * 10).to(torch.int8)


def hooked(x: Tensor) -> Tensor:
    result: Tensor = register_hook_op(x * 2, lambda gradient, factor: gradient * factor, 10)
    return result.sin()


WITH_GRADIENTS: dict[str, Callable[[Tensor], Any]] = {
    "wrap": lambda x: operators["wrap"](scaled, x)[0],
    "wrap_with_set_grad_enabled": lambda x: operators["wrap_with_set_grad_enabled"](False, scaled, x)[0] + x,
    "wrap_with_autocast": cast,
    "register_hook": hooked,
    "invoke_quant": lambda x: InvokeQuant()(lambda y, z: (y * z,), x, x, scheme="nf4")[0],
    "invoke_quant_packed": lambda x: invoke_quant_packed(scaled, x)[0],
}
PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "hints_wrapper": lambda x: hints_wrapper(scaled, (x,), {}, hints={"fuse": True})[0],
    "strict_mode": lambda x: strict_mode_op(scaled, (x,))[0],
    "out_dtype": lambda x: out_dtype(torch.ops.aten.mm.default, torch.int32, to_int8(x), to_int8(x).t()),
}


@pytest.mark.parametrize("name", WITH_GRADIENTS)
def test_results_and_gradients_match_eager(name: str) -> None:
    outcomes = []
    for program in (WITH_GRADIENTS[name], compiled := thunder.jit(WITH_GRADIENTS[name])):
        x = X.clone().requires_grad_()
        result = program(x)
        outcomes.append((result, torch.autograd.grad(result.float().sum(), x)))
    torch.testing.assert_close(*outcomes)
    assert thunder.cache_misses(compiled) == 1


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_match_eager(name: str) -> None:
    torch.testing.assert_close(thunder.jit(PROGRAMS[name])(X), PROGRAMS[name](X), rtol=0, atol=0)


def test_reads_of_the_function_are_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = thunder.jit(WITH_GRADIENTS["wrap"])
    for scale in (2.0, 3.0):
        monkeypatch.setitem(SCALE, "by", scale)
        torch.testing.assert_close(compiled(X), X.sin() * scale)
    assert thunder.cache_misses(compiled) == 2


def test_a_graph_with_a_region_runs() -> None:
    """Graphs call regions by operators that eager PyTorch runs only on fake tensors."""
    region: Any = operators["invoke_subgraph"]
    torch.testing.assert_close(thunder.jit(lambda x: region(GRAPH, "region", x)[0])(X), X.sin() * 2)


def test_function_prints_at_each_call(capsys: pytest.CaptureFixture[str]) -> None:
    compiled = thunder.jit(lambda x: (operators["print"]("{} of {}", 3, 4), x * 2)[1])
    for _ in range(2):
        compiled(X)
        assert capsys.readouterr().out == "3 of 4\n"
