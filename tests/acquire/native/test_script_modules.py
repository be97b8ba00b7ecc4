"""Programs that call functions and modules of TorchScript compute what eager PyTorch computes, also after changes."""

from __future__ import annotations

import io
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import thunder_core as thunder
from thunder_core.errors import RecompileWarning

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.:DeprecationWarning")


def scaled(x: Tensor, weight: Tensor, factor: int = 2) -> Tensor:
    return torch.relu(x) * weight * factor + x.sum()


class Layer(nn.Module):
    """A layer whose result depends on its mode and on a number."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.norm = nn.BatchNorm1d(2)
        self.factor = 3

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.linear(x)) * self.factor


class Counting(nn.Module):
    """A module that counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * self.calls


class Holding(nn.Module):
    """A module with attributes that contain tensors and numbers, of which C++ code makes new lists and dicts."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors = [torch.ones(2), torch.full((2,), 2.0)]
        self.numbers = {"factor": 3}
        self.nested = [[1, 2], [3]]
        self.pair = (2, torch.ones(2))
        self.optional = torch.jit.Attribute(None, Tensor | None)
        self.linear = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x) * self.numbers["factor"] * self.nested[-1][0] + self.pair[1] * self.pair[0]
        for tensor in self.tensors:
            y = y * tensor
        optional = self.optional
        return y if optional is None else y + optional


class Collecting(nn.Module):
    """A module that appends to a list."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes = [1]

    def forward(self, x: Tensor) -> Tensor:
        self.sizes.append(x.size(0))
        return x * len(self.sizes)


def scripted() -> Any:
    torch.manual_seed(0)
    return torch.jit.script(Layer())


def outcome(program: Callable[[Tensor], Tensor], rows: int) -> tuple[Tensor, Tensor | None]:
    x = torch.arange(2.0 * rows).view(rows, 2).square().requires_grad_()
    result = program(x)
    (result * torch.arange(2.0)).sum().backward()
    return result.detach(), x.grad


def test_function_has_gradients_at_each_call() -> None:
    """From the second call on, PyTorch runs a graph that is optimized for gradients, in which tensors are detached."""
    weight = torch.tensor([2.0, 3.0])
    script = torch.jit.script(scaled)
    compiled = thunder.jit(lambda x: script(x, weight=weight, factor=x.shape[0]))
    for rows in (2, 2, 3, 2, 5):
        expected = outcome(lambda x: torch.relu(x) * weight * x.shape[0] + x.sum(), rows)
        torch.testing.assert_close(outcome(compiled, rows), expected)


def _replace_weight(module: Any) -> None:
    module.linear.weight = nn.Parameter(torch.ones(2, 2))


def _write_weight(module: Any) -> None:
    with torch.no_grad():
        module.linear.weight.mul_(2)


CHANGES: dict[str, Callable[[Any], object]] = {
    "eval": lambda module: module.eval(),
    "eval of a submodule": lambda module: module.norm.eval(),
    "weight": _replace_weight,
    "values of the weight": _write_weight,
    "number": lambda module: setattr(module, "factor", 5),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("inside", [False, True], ids=["outside", "submodule"])
def test_changes_of_a_module_are_noticed(change: Callable[[Any], object], inside: bool) -> None:
    modules = [scripted(), scripted()]
    expected, compiled = (nn.Sequential(module) if inside else lambda x, m=module: m(x) * 2 for module in modules)
    compiled = thunder.jit(compiled)
    for step in range(4):
        torch.testing.assert_close(outcome(compiled, 3), outcome(expected, 3))
        states = [module.state_dict() for module in modules]
        torch.testing.assert_close(states[0], states[1])
        gradients = [[parameter.grad for parameter in module.parameters()] for module in modules]
        torch.testing.assert_close(gradients[0], gradients[1])
        for module in modules if step == 1 else ():
            change(module)


def test_attributes_that_the_program_reads_are_guarded() -> None:
    module = scripted()
    compiled = thunder.jit(lambda x: x * module.factor + module.linear.weight)
    x = torch.ones(2, 2)
    for factor in (3, 5):
        module.factor = factor
        assert torch.equal(compiled(x), x * factor + module.linear.weight)
        _replace_weight(module)


def test_traced_module_is_called() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    module = nn.Sequential(torch.jit.trace(model, torch.ones(3, 2)))
    compiled = thunder.jit(module)
    for rows in (3, 2):
        torch.testing.assert_close(outcome(compiled, rows), outcome(model, rows))


def test_eager_makes_calls_whose_code_writes_attributes() -> None:
    module = torch.jit.script(Counting())
    compiled = thunder.jit(lambda x: module(x))
    with pytest.warns(
        RecompileWarning, match="the TorchScript code of a module of class Counting writes its attribute `calls`"
    ):
        assert compiled(torch.ones(2)).tolist() == [1, 1]
    assert compiled(torch.ones(2)).tolist() == [2, 2]
    assert module.calls == 2


def test_eager_makes_calls_of_methods() -> None:
    module = scripted()
    compiled = thunder.jit(lambda x: module.forward(x) * 2)
    with pytest.warns(RecompileWarning, match="calls `forward`, a method of a module of TorchScript"):
        compiled(torch.ones(2, 2))
    module.eval()
    with warnings.catch_warnings(record=True):
        assert torch.equal(compiled(torch.ones(2, 2)), module(torch.ones(2, 2)) * 2)


HELD_CHANGES: dict[str, Callable[[Any], object]] = {
    "other tensors": lambda module: setattr(module, "tensors", [torch.full((2,), 5.0)]),
    "values of a tensor": lambda module: module.tensors[0].mul_(3),
    "a dict": lambda module: setattr(module, "numbers", {"factor": 7}),
    "a nested list": lambda module: setattr(module, "nested", [[1, 2], [4]]),
    "a tuple": lambda module: setattr(module, "pair", (3, torch.zeros(2))),
    "a tensor that may be missing": lambda module: setattr(module, "optional", torch.ones(2)),
}


def saved_and_loaded(module: Any) -> Any:
    buffer = io.BytesIO()
    torch.jit.save(module, buffer)
    buffer.seek(0)
    return torch.jit.load(buffer)


@pytest.mark.parametrize("change", HELD_CHANGES.values(), ids=HELD_CHANGES)
@pytest.mark.parametrize("make", [lambda module: module, saved_and_loaded], ids=["scripted", "loaded"])
def test_changes_of_attributes_with_contents_are_noticed(
    change: Callable[[Any], object], make: Callable[[Any], Any]
) -> None:
    torch.manual_seed(0)
    module = make(torch.jit.script(Holding()))
    compiled = thunder.jit(lambda x: module(x) * 2)
    for step in range(4):
        torch.testing.assert_close(outcome(compiled, 3), outcome(lambda x: module(x) * 2, 3))
        if step == 1:
            change(module)
    assert thunder.cache_hits(compiled) >= 2


def test_changed_attribute_of_a_frozen_module_is_noticed() -> None:
    module = torch.jit.freeze(torch.jit.script(Holding()).eval(), preserved_attrs=["numbers", "tensors"])
    compiled = thunder.jit(lambda x: module(x))
    for factor in (3, 3, 5):
        module.numbers = {"factor": factor}
        module.tensors = [torch.full((2,), float(factor))]
        torch.testing.assert_close(outcome(compiled, 3), outcome(module, 3))


def test_eager_makes_calls_whose_code_appends_to_a_list() -> None:
    module = torch.jit.script(Collecting())
    compiled = thunder.jit(lambda x: module(x))
    with pytest.warns(RecompileWarning, match="writes its attribute `sizes`"):
        assert compiled(torch.ones(2)).tolist() == [2, 2]
    assert compiled(torch.ones(2)).tolist() == [3, 3]
    assert module.sizes == [1, 2, 2]


def adds_a_list(x: Tensor) -> Tensor:
    if x.dim() == 1:
        x = x + torch.tensor([1.0, 2.0])
    return x


def adds_sizes(x: Tensor) -> Tensor:
    return x + torch.as_tensor(x.shape)


def reads_at_a_list(x: Tensor) -> Tensor:
    return x[[1, 0]]


class Shifted(nn.Module):
    """A module whose code makes a tensor from a list."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.tensor([1, 2])


FILLED = """
import warnings
import torch
import thunder_core as thunder
from tests.acquire.native import test_script_modules as programs

warnings.simplefilter("ignore", DeprecationWarning)
x = torch.tensor([3.0, 4.0])
for program in (programs.adds_a_list, programs.adds_sizes, programs.reads_at_a_list, programs.Shifted()):
    scripted = torch.jit.script(program)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fast = thunder.jit(lambda x: scripted(x) + 1, executors=("torch",))
        print(*(torch.equal(fast(x), program(x) + 1) for _ in range(2)))
    print(any("makes a tensor from a list" in str(warning.message) for warning in caught))
"""


def test_eager_makes_calls_whose_code_makes_tensors_from_lists() -> None:
    run = subprocess.run([sys.executable, "-c", FILLED], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (0, "True True\nTrue\n" * 4), run.stderr
