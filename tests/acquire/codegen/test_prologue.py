"""The prologue reads each owner once, and a check in C recognizes tensors that passed its guards before."""

from __future__ import annotations

import ast
import gc
import re
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import thunder_core as thunder
from tests.golden.programs import PROGRAMS
from thunder_core.compilation.compiler import last_program
from thunder_core.tracing.ir.literal import Scope, literal
from thunder_core.tracing.ir.printer import statement
from thunder_core.tracing.ir.symbol import proxies_in
from thunder_core.tracing.library import tensor_guards

LINEAR = """\
# prologue: trace
from thunder_core.tracing.library.changes.class_names import defines
from thunder_core.tracing.library.changes.module_calls import keeps_methods
from thunder_core.tracing.library.changes.tensor_class import replaced_entries
from thunder_core.tracing.library.objects import refuse
from thunder_core.tracing.library.tensor_guards import remember
from thunder_core.tracing.library.tensor_guards import tensors_match
from thunder_core.tracing.library.tracers import active_tracer
import torch
from torch.nn.modules.linear import __dict__ as linear_globals
from torch.nn.modules.module import __dict__ as module_globals
# constants: Linear, forward, torch_nn_functional, linear, Tensor, device, Parameter


def prologue(module, args, kwargs):
    if not (type(module) is Linear): refuse(n, module)
    if not (len(args) == 1): refuse(n, args)
    if not (not kwargs): refuse(n, kwargs)
    state = module.__dict__
    if not ('_call_impl' not in state and '_compiled_call_impl' not in state and 'forward' not in state \
and 'weight' not in state and 'bias' not in state): refuse(n, state)
    if not (keeps_methods(Linear, '__call__ _call_impl _compiled_call_impl')): refuse(n, Linear)
    if not (not (state['_backward_hooks'] or state['_backward_pre_hooks'] or state['_forward_hooks'] \
or state['_forward_pre_hooks'])): refuse(n, module)
    if not (not module_globals['_global_backward_pre_hooks']): refuse(n, module_globals['_global_backward_pre_hooks'])
    if not (not module_globals['_global_backward_hooks']): refuse(n, module_globals['_global_backward_hooks'])
    if not (not module_globals['_global_forward_pre_hooks']): refuse(n, module_globals['_global_forward_pre_hooks'])
    if not (not module_globals['_global_forward_hooks']): refuse(n, module_globals['_global_forward_hooks'])
    if not (Linear.forward is forward): refuse(n, Linear.forward)
    F = linear_globals['F']
    if not (F is torch_nn_functional): refuse(n, F)
    if not (F.__dict__['linear'] is linear): refuse(n, F.__dict__['linear'])
    if not (not defines(Linear, 'bias weight')): refuse(n, Linear)
    parameters = state['_parameters']
    if not (parameters['bias'] is None): refuse(n, parameters['bias'])
    input_2 = args[0]
    weight = parameters['weight']
    tensors = (input_2, weight)
    passed = tensors_match(prologue, tensors)
    if not (passed or active_tracer() is None): refuse(n, active_tracer())
    if not (passed or replaced_entries() == ()): refuse(n, replaced_entries())
    if not (passed or type(input_2) is Tensor and input_2.dtype is torch.float32 and input_2.shape == (2, 3) \
and input_2.stride() == (3, 1) and input_2.device == device and input_2.requires_grad is False \
and input_2.is_neg() is False): refuse(n, input_2)
    if not (passed or type(weight) is Parameter and weight.dtype is torch.float32 and weight.shape == (4, 3) \
and weight.stride() == (3, 1) and weight.device == device and weight.requires_grad is True \
and weight.is_neg() is False): refuse(n, weight)
    if not passed: remember(prologue, tensors)
    return (tensors, ())
"""


def test_prologue_is_python_and_reads_each_namespace_once() -> None:
    compiled = thunder.jit(nn.Linear(3, 4, bias=False))
    compiled(torch.ones(2, 3))
    text = re.sub(r"refuse\(\d+, ", "refuse(n, ", str(thunder.last_prologue_traces(compiled)[-1]))
    lines = text.splitlines(keepends=True)
    assert "".join(line for line in lines if "if not (torch." not in line) == LINEAR


def test_tensors_that_passed_are_recognized_until_they_change() -> None:
    compiled = thunder.jit(lambda x, y: x + y)
    x, y = torch.ones(2, 3), torch.ones(2, 3)
    compiled(x, y)
    prologue = last_program(compiled).prepare
    assert tensor_guards.tensors_match(prologue, (x, y))
    assert tensor_guards.tensors_match(prologue, (torch.zeros(2, 3), torch.zeros(2, 3)))
    assert not tensor_guards.tensors_match(prologue, (x, 1))
    assert not tensor_guards.tensors_match(prologue, (x, torch.ones(3, 2)))


CHANGES: dict[str, tuple[Callable[[], Any], str]] = {
    "shape": (lambda: torch.ones(3, 2), r"f32\[3, 2\]"),
    "rank": (lambda: torch.ones(2, 3, 1), r"f32\[2, 3, 1\]"),
    "stride": (lambda: torch.ones(3, 2).t(), r"f32\[2, 3\]"),
    "dtype": (lambda: torch.ones(2, 3, dtype=torch.float64), r"f64\[2, 3\]"),
    "requires_grad": (lambda: torch.ones(2, 3, requires_grad=True), "requires grad"),
    "class": (lambda: nn.Parameter(torch.ones(2, 3), requires_grad=False), "of class Parameter"),
    "device": (lambda: torch.ones(2, 3, device="meta"), "meta"),
    "number": (lambda: 2.5, "is 2.5"),
    "sparse": (lambda: torch.ones(2, 3).to_sparse(), "Tensor"),
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_tensor_that_differs_from_known_tensors_is_refused_with_a_reason(change: str, grad: bool) -> None:
    make, message = CHANGES[change]
    with torch.set_grad_enabled(grad):
        compiled = thunder.jit(lambda x: x * 2, cache="same input")
        for _ in range(2):
            compiled(torch.ones(2, 3))
        with pytest.raises(thunder.ThunderError, match=rf"args\[0\]: was f32\[2, 3\].*{message}"):
            compiled(make())


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_in_place_of_a_known_one_is_refused() -> None:
    compiled = thunder.jit(lambda x: x * 2, cache="same input")
    compiled(torch.ones(2, 3))
    with pytest.raises(thunder.ThunderError, match="the input differs"):
        compiled(torch.nested.nested_tensor([torch.ones(3), torch.ones(3)]))


def with_data(data: Tensor) -> Callable[[nn.Parameter], None]:
    return lambda weight: setattr(weight, "data", data)


IN_PLACE: dict[str, Callable[[nn.Parameter], object]] = {
    "data": with_data(torch.ones(4, 3)),
    "requires_grad": lambda weight: weight.requires_grad_(False),
    "transposed": with_data(torch.ones(3, 3).t()),
}


@pytest.mark.parametrize("change", IN_PLACE)
def test_a_known_parameter_that_is_changed_in_place_is_traced_again(change: str) -> None:
    net = nn.Linear(3, 3)
    compiled = thunder.jit(net)
    x = torch.ones(2, 3)
    for _ in range(2):
        compiled(x)
    IN_PLACE[change](net.weight)
    if change == "data":
        net.bias = nn.Parameter(torch.ones(4))
    assert torch.equal(compiled(x), net(x))
    assert thunder.cache_misses(compiled) == 2


def test_a_check_in_c_that_always_holds_would_go_undetected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_guards, "tensors_match", lambda prologue, tensors: True)
    compiled = thunder.jit(lambda x: x * x.shape[0])
    compiled(torch.ones(2))
    assert not torch.equal(compiled(torch.ones(5)), torch.ones(5) * 5)


def test_unrecognized_tensors_cost_a_bounded_effort(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    check = tensor_guards.new_check
    assert check is not None
    monkeypatch.setattr(tensor_guards, "new_check", lambda *args, **kwargs: made.append(1) or check(*args, **kwargs))
    compiled = thunder.jit(lambda x, y: x + y)
    x = torch.ones(2)
    compiled(x, torch.ones(2))
    for _ in range(40):
        assert torch.equal(compiled(x, x), x + x)
    assert thunder.cache_misses(compiled) == 1
    assert len(made) == tensor_guards.ATTEMPTS


def test_without_the_check_in_c_every_guard_is_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_guards, "new_check", None)
    compiled = thunder.jit(lambda x: x * x.shape[0])
    for size in (2, 2, 5, 5):
        assert torch.equal(compiled(torch.ones(size)), torch.ones(size) * size)
    assert (thunder.cache_hits(compiled), thunder.cache_misses(compiled)) == (2, 2)


def test_check_in_c_keeps_no_tensor_alive() -> None:
    net = nn.Linear(3, 3)
    compiled = thunder.jit(net)
    compiled(torch.ones(2, 3))
    last = weakref.ref(net.weight)
    net.weight = nn.Parameter(torch.ones(3, 3))
    gc.collect()
    assert last() is None


def test_names_that_the_text_uses_itself_are_free_for_the_user() -> None:
    def program(
        tensors_match: Tensor, remember: Tensor, refuse: Tensor, prologue: Tensor, tensors: int, passed: Tensor
    ) -> Any:
        return tensors_match + remember + refuse + prologue + tensors + passed

    compiled = thunder.jit(program)
    arguments = [torch.full((2,), float(n)) for n in range(6)]
    arguments[4] = 4
    for _ in range(2):
        assert torch.equal(compiled(*arguments), program(*arguments))
    assert thunder.cache_hits(compiled) == 1


class Counter:
    """Counts the rows of its inputs."""

    def __init__(self) -> None:
        self.rows = 0

    def add(self, x: Tensor) -> Tensor:
        self.rows += x.shape[0] * 2 + 1
        return x + 1


def test_names_of_computed_values_are_the_same_in_every_process() -> None:
    compiled = thunder.jit(lambda counter, x: counter.add(x), symbolic={"x.size(0)": None, "counter.rows": None})
    counter = Counter()
    for rows in (3, 5):
        compiled(counter, torch.ones(rows, 2))
    assert counter.rows == 18
    assert thunder.cache_misses(compiled) == 1, thunder.recompile_reasons(compiled)
    text = str(thunder.last_prologue_traces(compiled)[-1])
    assert "rows_expression = " in text
    assert "0x" not in text


def names_in(text: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}


@pytest.mark.parametrize(
    "name", ["family_llama", "side_effects", "symbolic_constraints", "symbolic_shapes", "symbolic_training"]
)
def test_statements_of_a_prologue_name_the_variables_that_they_read(name: str) -> None:
    prologue = last_program(PROGRAMS[name]()).last("prologue")
    variables = {proxy.name for bsym in prologue.bound_symbols for proxy in bsym.defines}
    variables |= {proxy.name for proxy in prologue.inputs}
    for bsym in prologue.bound_symbols:
        read = {proxy.name for proxy in bsym.inputs}
        assert read & variables == names_in(statement(replace(bsym, output=None), Scope())) & variables
    read = {proxy.name for proxy in proxies_in(prologue.output)}
    assert read & variables == names_in(literal(prologue.output, Scope())) & variables
