"""Prologues that skip what they have read from a module: every change of the module is noticed."""

from __future__ import annotations

import gc
import re
import threading
import weakref
from collections.abc import Callable
from types import MethodType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import thunder_core as thunder
from thunder_core.backend.runtime.prologues.quick_prologue import MAX_WHOLE_RUNS, NAME
from thunder_core.compiler import last_program
from thunder_core.frontend.acquire.codegen import prologue
from thunder_core.tracing.library.changes.memory_words import CAN_WATCH

pytestmark = pytest.mark.skipif(not CAN_WATCH, reason="the versions of dicts are not known in this Python")
X = torch.linspace(-1, 1, 48).reshape(1, 3, 4, 4)


class Block(nn.Module):
    offset = 0.5

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 3, 1)
        self.norm = nn.BatchNorm2d(3)
        self.scale = 2.0
        self.sizes = {"rows": 4, "order": (0, 1, 3, 2)}

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm(self.convolution(x))) * self.scale + self.offset
        return y.reshape(-1, self.sizes["rows"]).reshape(x.shape).permute(self.sizes["order"])


class OtherBlock(Block):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1


class Outer(nn.Sequential):
    pass


class OtherOuter(Outer):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 3


class OwnParameter(nn.Parameter):
    pass


@pytest.fixture(autouse=True)
def few_statements_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prologue, "MIN_SKIPPED_STATEMENTS", 1)


def outer() -> Outer:
    torch.manual_seed(0)
    net = Outer(Block(), Block()).eval()
    for norm in (net[0].norm, net[1].norm):
        norm.running_mean.uniform_(-1, 1)
        norm.running_var.uniform_(1, 2)
    return net


def compiled_and_quick(net: nn.Module, *args: Any) -> Any:
    """Return a compiled module whose program has begun to use its quick prologue."""
    compiled = thunder.jit(net)
    for _ in range(3):
        compiled(*args)
    assert is_quick(compiled)
    return compiled


def is_quick(compiled: Any) -> bool:
    return last_program(compiled).prepare.__name__ == NAME


CHANGES: dict[str, Callable[[Outer], Any]] = {
    "number": lambda net: setattr(net[0], "scale", 3.0),
    "type of a number": lambda net: setattr(net[0], "scale", torch.tensor(2.0, dtype=torch.float64)),
    "mode": lambda net: net.train(),
    "mode of one module": lambda net: net[1].norm.train(),
    "item of a dict": lambda net: net[0].sizes.update(order=(0, 1, 2, 3)),
    "dict": lambda net: setattr(net[0], "sizes", {"rows": 2, "order": (0, 1, 2, 3)}),
    "parameter": lambda net: setattr(net[0].convolution, "weight", nn.Parameter(torch.ones(3, 3, 1, 1))),
    "frozen parameter": lambda net: net[0].convolution.weight.requires_grad_(False),
    "dtype of a parameter": lambda net: net.double(),
    "data of a parameter": lambda net: setattr(net[0].convolution.weight, "data", torch.ones(3, 3, 1, 1)),
    "strides of a parameter": lambda net: net[0].convolution.weight.data.transpose_(0, 1),
    "values of a parameter": lambda net: net[0].convolution.weight.data.fill_(2.0),
    "class of a parameter": lambda net: setattr(net[0].convolution.weight, "__class__", OwnParameter),
    "exchanged parameters": lambda net: torch.utils.swap_tensors(
        net[0].convolution.weight, nn.Parameter(torch.ones(3, 3, 1, 1, dtype=torch.float64).float())
    ),
    "no bias": lambda net: setattr(net[1].convolution, "bias", None),
    "buffer": lambda net: setattr(net[0].norm, "running_mean", torch.ones(3)),
    "assigned state": lambda net: net.load_state_dict(
        {name: value.abs() + 1 for name, value in net.state_dict().items()}, assign=True
    ),
    "module": lambda net: net.__setitem__(1, OtherBlock().eval()),
    "one more module": lambda net: net.append(nn.ReLU()),
    "fewer modules": lambda net: net.pop(1),
    "class of a module": lambda net: setattr(net[1], "__class__", OtherBlock),
    "class of the outermost module": lambda net: setattr(net, "__class__", OtherOuter),
    "namespace of a module": lambda net: setattr(net[1], "__dict__", dict(vars(net[1]), scale=5.0)),
    "table of modules": lambda net: vars(net).update(_modules={"0": net[1]}),
    "forward of one module": lambda net: setattr(net[0], "forward", MethodType(lambda self, x: x + 1, net[0])),
    "hook": lambda net: net[0].norm.register_forward_hook(lambda module, args, output: output * 2),
    "hook that is stored directly": lambda net: net[0]._forward_pre_hooks.update(
        {0: lambda module, args: (args[0] * 2,)}
    ),
    "attribute that hides one of the class": lambda net: setattr(net[0], "offset", 1.5),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_module_is_noticed(change: str) -> None:
    net = outer()
    compiled = compiled_and_quick(net, X)
    CHANGES[change](net)
    x = X.double() if net[0].convolution.weight.dtype is torch.float64 else X
    for _ in range(3):
        state = {name: value.clone() for name, value in net.state_dict().items()}
        ours = compiled(x)
        net.load_state_dict(state)
        torch.testing.assert_close(ours, net(x), rtol=0, atol=0)


OF_CLASSES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "attribute": lambda patch: patch.setattr(Block, "offset", 7.0),
    "forward": lambda patch: patch.setattr(Block, "forward", lambda self, x: self.norm(x)),
    "forward of a library's class": lambda patch: patch.setattr(
        nn.BatchNorm2d, "forward", lambda self, x: x * self.weight[0]
    ),
    "forward of a base": lambda patch: patch.setattr(nn.BatchNorm2d, "_check_input_dim", lambda self, x: x.add_(1)),
    "property": lambda patch: patch.setattr(Block, "scale", property(lambda self: 9.0), raising=False),
    "function of a library": lambda patch: patch.setattr(F, "relu", lambda x: x * 0.5),
}


@pytest.mark.parametrize("change", OF_CLASSES)
def test_a_change_of_a_class_or_library_is_noticed(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net = outer()
    compiled = compiled_and_quick(net, X)
    OF_CLASSES[change](monkeypatch)
    for _ in range(3):
        torch.testing.assert_close(compiled(X.clone()), net(X.clone()), rtol=0, atol=0)


def test_quick_prologues_check_the_inputs_and_the_state_of_the_process() -> None:
    net = outer()
    compiled = compiled_and_quick(net, X)
    for x in (X.double(), X[:, :, :2], X.transpose(2, 3), X.clone().requires_grad_()):
        try:
            expected = net(x)
        except RuntimeError as error:
            with pytest.raises(RuntimeError, match=re.escape(str(error)[:20])):
                compiled(x)
        else:
            torch.testing.assert_close(compiled(x), expected, rtol=0, atol=0)
    with torch.no_grad():
        assert not compiled(X).requires_grad
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(compiled(X), net(X), rtol=0, atol=0)
    assert compiled(X).requires_grad


def test_the_quick_prologue_returns_what_the_whole_prologue_returns() -> None:
    net = outer()
    compiled = thunder.jit(net)
    compiled(X)
    whole = last_program(compiled).prepare(net, (X,), {})
    compiled(X)
    assert is_quick(compiled)
    for _ in range(2):
        inputs, outside = last_program(compiled).prepare(net, (X,), {})
        assert [*map(id, inputs)] == [*map(id, whole[0])]
        assert outside == whole[1]


def test_replaced_modules_and_weights_are_freed_without_another_call() -> None:
    net = outer()
    compiled = compiled_and_quick(net, X)
    weight, block = weakref.ref(net[0].convolution.weight), weakref.ref(net[1])
    gc.disable()
    try:
        net[0].convolution.weight = nn.Parameter(torch.ones(3, 3, 1, 1))
        net[1] = Block().eval()
        assert weight() is None
        assert block() is None
    finally:
        gc.enable()
    torch.testing.assert_close(compiled(X), net(X), rtol=0, atol=0)


def test_programs_do_not_keep_a_module_alive() -> None:
    net = outer()
    compiled = compiled_and_quick(net, X)
    part = weakref.ref(net[0].norm)
    program = last_program(compiled)
    del net, compiled
    gc.collect()
    assert program.prepare.__name__ == NAME
    assert part() is None


class Counting(Block):
    """A module of which a read property changes another attribute, as long as `step` is not zero."""

    def __init__(self) -> None:
        super().__init__()
        self.step = 0

    def __getattr__(self, name: str) -> Any:
        if name == "factor":
            self.scale += self.step
            return 1.0
        return super().__getattr__(name)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.factor


def test_user_code_in_a_prologue_may_change_the_module() -> None:
    nets = Counting().eval(), Counting().eval()
    nets[1].load_state_dict(nets[0].state_dict())
    compiled = thunder.jit(nets[0])
    for step in (0, 0, 0, 0, 1, 1, 1, 0, 0):
        for net in nets:
            net.step = step
        torch.testing.assert_close(compiled(X), nets[1](X), rtol=0, atol=0)
        nets[0].scale = nets[1].scale


def test_a_module_that_changes_often_uses_the_whole_prologue() -> None:
    net = outer()
    compiled = compiled_and_quick(net, X)
    for number in range(MAX_WHOLE_RUNS + 2):
        net.unrelated = number
        torch.testing.assert_close(compiled(X), net(X), rtol=0, atol=0)
    assert not is_quick(compiled)
    net[0].scale = 4.0
    torch.testing.assert_close(compiled(X), net(X), rtol=0, atol=0)


def test_inputs_of_another_shape_do_not_turn_the_quick_prologue_off() -> None:
    net = outer()
    compiled = compiled_and_quick(net, X)
    other = torch.cat((X, X))
    for _ in range(MAX_WHOLE_RUNS + 2):
        for x in (X, other):
            torch.testing.assert_close(compiled(x), net(x), rtol=0, atol=0)
    assert is_quick(compiled)


def test_changes_are_noticed_while_other_threads_run() -> None:
    net = outer()
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        compiled = compiled_and_quick(net, X)
        for scale in (3.0, 4.0):
            net[0].scale = scale
            for _ in range(2):
                torch.testing.assert_close(compiled(X), net(X), rtol=0, atol=0)
        net[1] = OtherBlock().eval()
        torch.testing.assert_close(compiled(X), net(X), rtol=0, atol=0)
    finally:
        done.set()
        thread.join()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_parameter_exchanged_for_a_nested_tensor_does_not_crash() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    x = torch.ones(2, 3)
    compiled = compiled_and_quick(net, x)
    nested = nn.Parameter(torch.nested.nested_tensor([torch.randn(3), torch.randn(2)]))
    torch.utils.swap_tensors(net[0].bias, nested)
    for call in (net, compiled):
        with pytest.raises(Exception, match=r"nested|NestedTensor"):
            call(x)
