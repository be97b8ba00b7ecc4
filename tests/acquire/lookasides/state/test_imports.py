"""Imports inside functions: a program finds the module that Python has at each call, or finds no module."""

from __future__ import annotations

import importlib
import math
import operator
import sys
import types
from typing import Any

import pytest
import torch
from torch import Tensor

import thunder_core as thunder

NAME = "module_that_is_missing"
X = torch.ones(2)


@pytest.fixture(autouse=True)
def without_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the module after a test."""
    monkeypatch.setitem(sys.modules, NAME, None)
    monkeypatch.delitem(sys.modules, NAME)


def by_statement(x: Tensor) -> Tensor:
    try:
        import module_that_is_missing
    except ImportError:
        return x * 3
    return x * module_that_is_missing.k


def by_function(x: Tensor) -> Tensor:
    try:
        return x * importlib.import_module(NAME).k
    except ImportError:
        return x * 3


def with_k(kind: Any, k: int) -> Any:
    module = kind(NAME) if kind is types.ModuleType else kind()
    module.k = k
    return module


@pytest.mark.parametrize("program", [by_statement, by_function])
@pytest.mark.parametrize("kind", [types.ModuleType, types.SimpleNamespace])
def test_a_missing_module_is_found_once_it_is_there(program: Any, kind: Any) -> None:
    compiled = thunder.jit(program)
    for factor in (3, 5, 7, 7):
        if factor > 3:
            sys.modules[NAME] = with_k(kind, factor)
        assert torch.equal(compiled(X), X * factor)


def test_another_module_under_the_name_of_an_import_is_found() -> None:
    def program(x: Tensor) -> Tensor:
        import module_that_is_missing

        return x * hasattr(module_that_is_missing, "pi")

    compiled = thunder.jit(program)
    for module in (math, operator):
        sys.modules[NAME] = module
        assert torch.equal(compiled(X), X * (module is math))
