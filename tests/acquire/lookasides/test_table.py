"""The table of lookasides: how they are found, and how the interpreter calls them."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import thunder_core as thunder
from thunder_core.foundation import plugins
from thunder_core.frontend.acquire import lookasides
from thunder_core.frontend.acquire.lookaside_table import LATE_LOOKASIDES, LOOKASIDES, late_lookaside_of
from thunder_core.frontend.acquire.lookaside_table import lookaside as register
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter import NOT_TAKEN


@pytest.mark.parametrize(("module", "name"), LATE_LOOKASIDES)
def test_a_late_lookaside_is_found_for_its_function_alone(module: str, name: str) -> None:
    pytest.importorskip(module.partition(".")[0])  # loguru is no dependency of the tests
    found = plugins.import_object(f"{module}:{name}")
    function = getattr(found, "__func__", found)  # a class method's function
    assert isinstance(function, FunctionType)
    lookaside = late_lookaside_of(function)
    assert isinstance(lookaside, partial)
    assert lookaside.func is LATE_LOOKASIDES[module, name]
    assert lookaside.args == (function,)

    def other() -> None:
        """A function whose name is that of another function."""

    other.__module__, other.__qualname__ = module, name
    assert late_lookaside_of(other) is None
    assert late_lookaside_of(test_a_late_lookaside_is_found_for_its_function_alone) is None


def test_every_module_of_the_folder_is_imported() -> None:
    modules = {
        f"{lookasides.__name__}.{'.'.join(path.relative_to(folder).with_suffix('').parts)}"
        for folder in map(Path, lookasides.__path__)
        for path in folder.rglob("*.py")
        if path.name != "__init__.py"
    }
    assert len(modules) > 50
    assert plugins.import_object("thunder_core.frontend.acquire.acquire:acquire")
    assert modules <= sys.modules.keys()


def test_lookasides_take_the_run_by_position_alone() -> None:
    """A keyword argument of the program can therefore have any name."""
    for lookaside in (*LOOKASIDES.values(), *LATE_LOOKASIDES.values()):
        parameters = [*inspect.signature(lookaside).parameters.values()]
        index = next(index for index, parameter in enumerate(parameters) if parameter.name == "run")
        kinds = {parameter.kind for parameter in parameters[: index + 1]}
        assert kinds == {inspect.Parameter.POSITIONAL_ONLY}, lookaside


class Named(torch.nn.Module):
    def forward(self, x: torch.Tensor, *, run: float, module: float, function: float = 7.0) -> torch.Tensor:
        return x * run + module - function


class Pair(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.named = Named()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        once = self.named(x, run=2.0, module=3.0, function=4.0)
        return checkpoint(self.named, once, use_reentrant=False, run=5.0, module=6.0)


def checked_by_keyword(x: torch.Tensor) -> torch.Tensor:
    torch._assert(condition=(x > 0).all(), message="run")
    x.clone().requires_grad_().register_hook(hook=lambda gradient: gradient)
    return x * 2


@pytest.mark.parametrize("program", [Pair(), checked_by_keyword], ids=["modules", "functions"])
def test_keyword_arguments_of_replaced_functions_may_have_any_name(program: Callable[..., Any]) -> None:
    compiled = thunder.jit(program)
    x = torch.rand(3) + 1
    for _ in range(2):
        torch.testing.assert_close(compiled(x), program(x))
    assert thunder.cache_misses(compiled) == 1
    assert thunder.cache_hits(compiled) == 1


def test_a_lookaside_that_is_not_taken_leaves_the_call_to_the_interpreter() -> None:
    taken: list[bool] = []

    def original(x: torch.Tensor) -> torch.Tensor:
        return x.cos() + inner(x)

    def inner(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    def replaces(run: TracedRun, /, x: torch.Tensor) -> Any:
        taken.append(x.dim() == 2)
        return run.machine.call(inner, x) if taken[-1] else NOT_TAKEN

    register(original)(replaces)
    try:
        compiled = thunder.jit(lambda x: original(x) * 2)
        matrix, vector = torch.randn(2, 3), torch.randn(3)
        torch.testing.assert_close(compiled(matrix), matrix.sin() * 2)
        torch.testing.assert_close(compiled(vector), original(vector) * 2)
    finally:
        del LOOKASIDES[original]
    assert taken == [True, False]
