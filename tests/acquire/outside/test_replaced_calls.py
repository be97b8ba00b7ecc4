"""Methods and functions of PyTorch, and modules of Python, that are replaced between calls of a program."""

from __future__ import annotations

import functools
import importlib
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import thunder_core as thunder
from tests.uncompiled import leave_inductor_out

X = torch.tensor([[-1.0, 2.0]])
CALL, CALL_IMPL = nn.Module.__call__, nn.Module._call_impl
RELU, ADD, LINEAR = functional.relu, Tensor.__add__, functional.linear


@pytest.fixture(autouse=True)
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run programs in eager operations."""
    leave_inductor_out(monkeypatch)


class Doubled(nn.Module):
    """A module of the user around modules of PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.activation = nn.ReLU()
        self.last = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.activation(x)) + functional.linear(x, x)


# For each case: the object that gets an attribute, its name, and the attribute.
PATCHES: dict[str, Callable[[Doubled], tuple[Any, str, Any]]] = {
    "_call_impl of an instance": lambda m: (m, "_call_impl", lambda x: x * 5),
    "_compiled_call_impl of an instance": lambda m: (m, "_compiled_call_impl", lambda x: x * 5),
    "_call_impl of an inner instance": lambda m: (m.last, "_call_impl", lambda x: x * 5),
    "forward of an instance": lambda m: (m, "forward", lambda x: x * 5),
    "_call_impl of the class": lambda m: (Doubled, "_call_impl", lambda self, x: CALL_IMPL(self, x) * 5),
    "_compiled_call_impl of the class": lambda m: (Doubled, "_compiled_call_impl", staticmethod(lambda x: x * 5)),
    "__call__ of the class": lambda m: (Doubled, "__call__", lambda self, x: CALL(self, x) * 5),
    "__call__ of a class of PyTorch": lambda m: (nn.ReLU, "__call__", lambda self, x: CALL(self, x) * 5),
    "_call_impl of a class of PyTorch": lambda m: (nn.ReLU, "_call_impl", lambda self, x: x * 5),
    "forward of a class of PyTorch": lambda m: (nn.ReLU, "forward", lambda self, x: x * 5),
    "__call__ of all modules": lambda m: (nn.Module, "__call__", lambda self, x: CALL(self, x) * 5),
    "_call_impl of all modules": lambda m: (nn.Module, "_call_impl", lambda self, x: CALL_IMPL(self, x) * 5),
    "a function that calls the original": lambda m: (functional, "linear", lambda *args: LINEAR(*args) + 5),
    "a function that a module calls": lambda m: (functional, "relu", lambda x, inplace: RELU(x, inplace) + 5),
    "a method that calls the original": lambda m: (Tensor, "__add__", lambda self, other: ADD(self, other) * 5),
}


@pytest.mark.parametrize("subject", ["the module", "a function"])
@pytest.mark.parametrize("is_patched_first", [False, True])
@pytest.mark.parametrize("name", PATCHES)
def test_replaced_calls_are_noticed(
    name: str, subject: str, is_patched_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = Doubled()
    program = module if subject == "the module" else lambda x: module(x)
    fast = thunder.jit(program)
    plain = program(X)
    if not is_patched_first:
        assert torch.equal(fast(X), plain)
    owner, attribute, replacement = PATCHES[name](module)
    with monkeypatch.context() as patch:
        patch.setattr(owner, attribute, replacement, raising=False)
        patched = program(X)
        results = [fast(X) for _ in range(2)]
    assert not torch.equal(patched, plain)
    assert all(torch.equal(result, patched) for result in results)
    assert all(torch.equal(fast(X), plain) for _ in range(2))


SIGMOID = torch.sigmoid


class Stored(nn.Module):
    """A module that stores a function of PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.activation = functional.gelu

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(x)


# For each program that has another name for a function: the module and the name of the function in PyTorch.
OTHER_NAMES: dict[str, tuple[Callable[[Tensor], Tensor], Any, str]] = {
    "a global": (lambda x: RELU(x), functional, "relu"),
    "a global for a builtin": (lambda x: SIGMOID(x), torch, "sigmoid"),
    "an attribute of a module": (Stored(), functional, "gelu"),
    "an item": (lambda x: {"relu": RELU}["relu"](x, inplace=False), functional, "relu"),
    "a factory": (functools.partial(lambda ones, x: x + ones(2), torch.ones), torch, "ones"),
    "a function of a submodule": (functools.partial(lambda fft, x: fft(x).real, torch.fft.fft), torch.fft, "fft"),
}


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_function_under_another_name_is_called_after_its_first_name_is_replaced(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, module, attribute = OTHER_NAMES[name]
    fast, expected = thunder.jit(program), program(X)
    assert torch.equal(fast(X), expected)
    with monkeypatch.context() as patch:
        patch.setattr(module, attribute, lambda *args, **kwargs: torch.full((2,), 5.0))
        assert all(torch.equal(fast(X), expected) for _ in range(2))
    assert torch.equal(fast(X), expected)
    assert thunder.cache_misses(fast) == 2


REPLACED_BEFORE_IMPORT = """
import torch
from torch.nn import functional
relu = functional.relu
functional.relu = lambda x, inplace: relu(x, inplace) + 5
import thunder_core as thunder
module = torch.nn.ReLU()
x = torch.tensor([-1.0, 2.0])
print(thunder.jit(lambda x: module(x), executors=("torch",))(x).tolist(), module(x).tolist())
"""


def test_function_that_was_replaced_before_thunder_was_imported_runs_once() -> None:
    printed = subprocess.run([sys.executable, "-c", REPLACED_BEFORE_IMPORT], capture_output=True, text=True, check=True)
    assert printed.stdout.strip() == "[5.0, 7.0] [5.0, 7.0]"


class Sub(Tensor):
    """A subclass of Tensor that gets a `__torch_function__` between calls."""


def test_torch_function_that_a_class_gets_later_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    def times_five(cls: Any, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = Tensor.__torch_function__.__func__(cls, function, kinds, args, kwargs)
        return result * 5 if function is torch.add else result

    fast = thunder.jit(lambda x: torch.add(x, 1))
    x = torch.ones(2).as_subclass(Sub)
    assert fast(x).tolist() == [2, 2]
    with monkeypatch.context() as patch:
        patch.setattr(Sub, "__torch_function__", classmethod(times_five))
        assert fast(x).tolist() == [10, 10]
    assert fast(x).tolist() == [2, 2]


def import_statement() -> Any:
    import replaced_module

    return replaced_module.factor


def import_of_a_name() -> Any:
    from replaced_module import factor

    return factor


def import_by_name() -> Any:
    return importlib.import_module("replaced_module").factor


IMPORTS = (import_statement, import_of_a_name, import_by_name)


@pytest.fixture
def replaced_module() -> Iterator[Callable[[Any], None]]:
    """Return a function that makes a module with a factor the imported one."""

    def install(factor: Any) -> None:
        module = types.ModuleType("replaced_module")
        module.factor = factor  # type: ignore[attr-defined]
        sys.modules["replaced_module"] = module

    yield install
    sys.modules.pop("replaced_module", None)


@pytest.mark.parametrize("factor", IMPORTS, ids=lambda factor: factor.__name__)
def test_replaced_modules_are_imported_again(factor: Callable[[], Any], replaced_module: Callable[[Any], None]) -> None:
    fast = thunder.jit(lambda x: x * factor())
    for number in (2, 5):
        replaced_module(number)
        assert torch.equal(fast(X), X * number)
    sys.modules["replaced_module"].factor = 7  # type: ignore[attr-defined]
    assert torch.equal(fast(X), X * 7)
    del sys.modules["replaced_module"]
    with pytest.raises(ModuleNotFoundError):
        fast(X)
