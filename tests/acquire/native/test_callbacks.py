"""Python code that C calls is guarded: if a global that it reads changes between calls, the result matches eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import thunder_core as thunder
from tests.interpreter import callbacks
from tests.interpreter.callbacks import CALLBACKS

X = torch.ones(2)


def outcome(program: Any) -> str:
    """Return the result or the error of a program as text."""
    try:
        return repr(program())
    except Exception as error:
        return repr(error)


@pytest.mark.parametrize("name", CALLBACKS)
def test_changed_global_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = CALLBACKS[name]
    compiled = thunder.jit(lambda x: (x + 1, outcome(program)))
    for probe in (2, 2, 3, 2):
        monkeypatch.setattr(callbacks, "PROBE", probe)
        assert compiled(X)[1] == outcome(program)


class Holder:
    def __init__(self, value: torch.Tensor) -> None:
        self.value = value


def test_hooks_that_compiled_autograd_calls_are_guarded() -> None:
    from torch._dynamo.external_utils import call_hook

    def call(hooks: Any, gradient: torch.Tensor) -> Any:
        return call_hook(hooks[0], gradient, hook_type="tensor_pre_hook")

    compiled, holder = thunder.jit(call), Holder(X)
    hooks = (lambda gradient: gradient + holder.value,)
    for value in (X, X * 5, X * 7):
        holder.value = value
        torch.testing.assert_close(compiled(hooks, X), call(hooks, X))


def test_hooks_of_compiled_programs_are_guarded_in_other_programs() -> None:
    def register(x: torch.Tensor, holder: Holder) -> Any:
        handle = x.register_hook(lambda gradient: gradient * holder.value)
        return x * 3, handle

    compiled = thunder.jit(register)
    called = thunder.jit(lambda hook, gradient: hook(gradient) + 1)
    for value in (X, X * 5):
        x = torch.ones(2, requires_grad=True)
        compiled(x, Holder(value))
        (hook,) = x._backward_hooks.values()
        torch.testing.assert_close(called(hook, X), X * value + 1)
