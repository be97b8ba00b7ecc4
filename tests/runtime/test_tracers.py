"""A compiled function within PyTorch's own tracers: Dynamo does not trace the call, and most tracers are refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from transformers import LlamaConfig, LlamaForCausalLM

import thunder_core as thunder
from thunder_core.foundation.errors import NotTraceable, RecompileWarning, ThunderError

X = torch.linspace(-1, 1, 8).reshape(2, 4)


class Held(nn.Module):
    """A module that calls a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


def on_fakes(function: Callable[..., Any]) -> Any:
    with FakeTensorMode():
        return function(torch.ones(2, 4))


def beside_fakes(function: Callable[..., Any]) -> Any:
    with FakeTensorMode():
        return function(X)


TRACERS: dict[str, Callable[[Callable[..., Any]], Any]] = {
    "functionalize": lambda f: torch.func.functionalize(f)(X),
    "jit.trace": lambda f: torch.jit.trace(Held(f), (X,)),
    "jit.script": lambda f: torch.jit.script(f),
    "jit.script of a module": lambda f: torch.jit.script(thunder.jit(nn.ReLU())),
    "export": lambda f: torch.export.export(Held(f), (X,), strict=False),
    "make_fx": lambda f: make_fx(f)(X),
    "make_fx on fakes": lambda f: make_fx(f, tracing_mode="fake")(X),
    "symbolic_trace": lambda f: torch.fx.symbolic_trace(lambda x: f(x)),
    "FakeTensorMode": on_fakes,
    "FakeTensorMode beside it": beside_fakes,
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("known", [False, True], ids=["not called before", "called before"])
@pytest.mark.parametrize("name", TRACERS)
def test_a_tracer_is_refused_with_the_line(name: str, known: bool) -> None:
    compiled = thunder.jit(lambda x: x.sin() * 2)
    if known:
        compiled(X)
    with pytest.raises(NotTraceable) as caught:
        TRACERS[name](compiled)
    assert caught.value.where is not None
    assert caught.value.where.filename == __file__
    assert torch.equal(compiled(X), X.sin() * 2)


def tangent(function: Callable[..., Any], x: Tensor) -> Any:
    """Return the result of a function and its derivative in the direction of `x`, in forward mode."""
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(function(forward_ad.make_dual(x, x)))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("known", [False, True], ids=["not called before", "called before"])
def test_eager_makes_calls_at_a_level_of_forward_derivatives(known: bool) -> None:
    def program(x: Tensor) -> Tensor:
        return x.sin() * 2

    compiled = thunder.jit(program)
    if known:
        compiled(X)
    with pytest.warns(RecompileWarning, match="forward-mode derivatives"):
        found = tangent(compiled, X)
    for _ in range(5):
        assert all(map(torch.equal, found, tangent(program, X)))
        found = tangent(compiled, X)
    assert torch.equal(compiled(X[0]), program(X[0]))
    assert thunder.cache_misses(compiled) == 1 + known


def test_a_level_of_forward_derivatives_is_refused_where_values_are_errors() -> None:
    with pytest.raises(NotTraceable, match="forward-mode derivatives"):
        tangent(thunder.jit(torch.sin, data_dependent="error"), X)


def test_a_program_without_tensors_is_refused_too() -> None:
    compiled = thunder.jit(lambda: torch.ones(4))
    compiled()
    with pytest.raises(NotTraceable):
        torch.func.functionalize(lambda x: x + compiled())(X)


class Tripled(torch.autograd.Function):
    """An operation whose forward calls a compiled function, while a program that calls the operation is traced."""

    tripled = staticmethod(thunder.jit(lambda x: x * 3))

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return Tripled.tripled(x)  # here


def test_native_code_of_a_traced_program_is_refused_with_its_line() -> None:
    with pytest.raises(NotTraceable, match="does not trace into") as caught:
        thunder.jit(lambda x: Tripled.apply(x))(X.clone().requires_grad_())
    line = Path(__file__).read_text(encoding="utf-8").splitlines()[caught.value.where.lineno - 1]
    assert line.endswith("# here")


def net() -> tuple[nn.Module, Any]:
    """A small network and its compiled module."""
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    return made, thunder.jit(made)


DYNAMO: dict[str, Callable[[Any], Callable[[Tensor], Tensor]]] = {
    "the module": lambda c: c,
    "its call": lambda c: c.__call__,
    "a function around it": lambda c: lambda x: c(x) * 2,
    "a function around its forward": lambda c: lambda x: c.forward(x) * 2,
    "a module around it": lambda c: nn.Sequential(nn.Linear(4, 4), c),
    "a compiled function": lambda c: thunder.jit(lambda x: c(x) + 1),
}


@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("name", DYNAMO)
def test_dynamo_does_not_trace_compiled_functions(name: str) -> None:
    module, compiled = net()
    program = DYNAMO[name](compiled)
    wanted = program(X)
    (expected,) = torch.autograd.grad(wanted.sum(), module[0].weight)
    torch.compiler.reset()
    fast = torch.compile(program, backend="eager")
    for _ in range(2):
        found = fast(X)
        assert torch.equal(found, wanted)
        assert torch.equal(torch.autograd.grad(found.sum(), module[0].weight)[0], expected)


def test_dynamo_reports_why_a_full_graph_is_impossible() -> None:
    compiled = thunder.jit(lambda x: x * 2)
    with pytest.raises(Exception, match="thunder_core has compiled this function"):
        torch.compile(lambda x: compiled(x) + 1, backend="eager", fullgraph=True)(X)


def test_generate_with_a_static_cache_gives_the_same_tokens() -> None:
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).eval()
    ids = torch.randint(0, 64, (1, 5))
    wanted = model.generate(ids, max_new_tokens=4, do_sample=False)
    compiled = thunder.jit(model)
    found = compiled.generate(ids, max_new_tokens=4, do_sample=False, cache_implementation="static")
    assert torch.equal(found, wanted)
    assert thunder.cache_misses(compiled) == 2


def test_the_prologue_checks_for_tracers_only_with_unknown_tensors() -> None:
    compiled = thunder.jit(lambda x: x * 2)
    compiled(X)
    text = str(thunder.last_prologue_traces(compiled)[-1])
    assert re.search(r"if not \(passed or active_tracer\(\) is None\)", text)
    assert issubclass(NotTraceable, ThunderError)
