"""Subjects of `jit` that are not Python functions: what they call is guarded, and its side effects are replayed."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import thunder_core as thunder

X = torch.ones(2)


class Caller:
    """Calls a function, as a callable object and as a method."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, x: torch.Tensor) -> Any:
        return self.function(x)


class Derived(functools.partial):  # type: ignore[type-arg]
    pass


SUBJECTS: dict[str, Callable[[Any], Any]] = {
    "a partial": functools.partial,
    "a partial of a partial": lambda function: functools.partial(functools.partial(function)),
    "a partial of a method": lambda function: functools.partial(Caller(function).__call__),
    "a partial of an object": lambda function: functools.partial(Caller(function)),
    "a partial with keywords": lambda function: functools.partial(lambda x, y: function(x) * y, y=1),
    "a subclass of partial": Derived,
    "a static method": staticmethod,
    "a cached function": functools.lru_cache,
    "a weak proxy": weakref.proxy,
    "a callable object": Caller,
    "a compiled function": thunder.jit,
    "a partial of a compiled function": lambda function: functools.partial(thunder.jit(function)),
}


def results_of(compiler: Callable[[Any], Any], kind: str) -> list[Any]:
    """Call a subject whose function reads one variable and writes another."""
    scale, calls = 2, 0

    def function(x: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return x * scale + calls

    subject = SUBJECTS[kind](function)
    program = compiler(subject)
    results = [program(X).tolist(), calls]
    scale = 3
    results += [program(X + 1).tolist(), calls]
    scale = 5
    return [*results, program(X + 2).tolist(), calls, program(X + 3).tolist(), calls]


@pytest.mark.parametrize("kind", SUBJECTS)
def test_variables_of_the_called_function_are_guarded_and_written(kind: str) -> None:
    assert results_of(thunder.jit, kind) == results_of(lambda subject: subject, kind)


def test_arguments_of_a_partial_are_guarded() -> None:
    partial = functools.partial(lambda scale, x, shift: x * scale[0] + shift, [2], shift=1)
    compiled = thunder.jit(partial)
    assert compiled(X).tolist() == [3, 3]
    partial.args[0][0] = 3
    assert compiled(X).tolist() == [4, 4]
    partial.keywords["shift"] = 5
    assert compiled(X).tolist() == [8, 8]


@pytest.mark.filterwarnings("ignore:`torch.jit.(script|trace).*` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("compiler", [torch.jit.script, lambda module: torch.jit.trace(module, torch.ones(2, 2))])
def test_module_of_torchscript_is_refused(compiler: Callable[[Any], Any]) -> None:
    with pytest.raises(thunder.errors.WrongInputs, match="not a module of TorchScript"):
        thunder.jit(compiler(torch.nn.Linear(2, 2)))


class Configured(torch.nn.Module):
    """A module whose other attributes are keys of a dict, and whose missing attributes raise `KeyError`."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)
        self.settings = {"scale": 2}

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return self.__dict__["settings"][name]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.scale


@pytest.mark.parametrize("inside", [False, True], ids=["subject", "submodule"])
def test_module_whose_missing_attributes_raise_other_errors(inside: bool) -> None:
    module = Configured()
    model = torch.nn.Sequential(module) if inside else module
    compiled = thunder.jit(model)
    x = torch.ones(3, 2)
    for scale in (2, 3, 5):
        module.settings["scale"] = scale
        torch.testing.assert_close(compiled(x), module.linear(x) * scale)
