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
