"""A pytest plugin that runs PyTorch's tests of Dynamo with `thunder_core.jit` in place of `torch.compile`.

    python -m pytest -p tests.pytorch_tests --noconftest PYTORCH/test/dynamo/test_functions.py

PYTORCH is a source tree of PyTorch; its version may differ from the installed one. The tests compare results with those
of eager PyTorch. Counts of graphs and operations are equal to every number. Tests that ask for Dynamo's errors, logs or
graphs still fail, so a reader decides which failures are Thunder's.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import torch
import torch._dynamo.eval_frame
import torch._dynamo.test_case
import torch._dynamo.testing

import thunder_core as thunder

COUNTERS = ("CompileCounter", "CompileCounterWithBackend", "EagerAndRecordGraphs", "AotEagerAndRecordGraphs")
COUNTS = ("frame_count", "op_count")
# Modules with helpers that another version of PyTorch may lack; a decorator that is missing changes nothing.
HELPERS = (
    *("torch.testing._internal.common_utils", "torch.testing._internal.common_cuda"),
    *("torch.testing._internal.common_mkldnn", "torch.testing._internal.common_nn"),
    *("torch.testing._internal.common_device_type", "torch.testing._internal.common_dtype"),
    *("torch._dynamo.testing", "torch._dynamo.utils", "torch._dynamo.exc"),
)


class AnyNumber(int):
    """A number that compares as the tests expect: equal to each number, and on the right side of each limit."""

    def agree(self, _other: object) -> bool:
        """Return True for each comparison."""
        return True

    def itself(self, _other: object) -> AnyNumber:
        """Return the number for each sum and difference."""
        return self

    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = agree
    __add__ = __radd__ = __sub__ = __rsub__ = itself

    def __ne__(self, other: object) -> bool:
        return False

    def __hash__(self) -> int:
        return 0


def jit(subject: Any = None, *_args: Any, **_options: Any) -> Any:
    """Compile a function or a module with Thunder; without one, return a decorator. Dynamo's options have no effect."""
    return jit if subject is None else thunder.jit(subject)


def decorator(*_args: Any, **_options: Any) -> Callable[[Any], Any]:
    """Return the decorator that `torch._dynamo.optimize(backend)` returns."""
    return jit


def missing_helper(module: ModuleType, name: str) -> Any:
    """Return the list that a newer PyTorch makes by a function, or else a decorator, with or without arguments."""
    if name.startswith("__"):
        raise AttributeError(name)
    if (getter := vars(module).get(f"get_{name}")) is not None:
        return getter()
    return lambda function=None, *_args, **_options: function if callable(function) else lambda decorated: decorated


def pytest_configure() -> None:
    """Replace Dynamo's entry points before the tests are imported."""
    any_count = property(lambda counter: AnyNumber(1), lambda counter, count: None)
    torch.compile = jit
    for module in (torch._dynamo, torch._dynamo.eval_frame, torch._dynamo.testing):
        for name in ("optimize", "optimize_assert"):
            setattr(module, name, decorator)
    for name in COUNTERS:
        for count in COUNTS:
            setattr(getattr(torch._dynamo.testing, name), count, any_count)
    add_missing_helpers()


def add_missing_helpers() -> None:
    """Let tests import helpers that the installed PyTorch lacks."""
    for name in HELPERS:
        module = importlib.import_module(name)
        module.__getattr__ = partial(missing_helper, module)  # type: ignore[method-assign]
