"""Tracing for another device: only one thread traces at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import thunder_core as thunder
from thunder_core.backend.runtime.compiled import COMPILING
from thunder_core.compilation.compiler import trace_for
from thunder_core.compilation.compiler.compiler import Compiler


def test_no_other_thread_traces_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    original, owned = Compiler.__call__, []

    def compiling(self: Compiler, *given: Any) -> Any:
        owned.append(COMPILING._is_owned())  # type: ignore[attr-defined]
        return original(self, *given)

    monkeypatch.setattr(Compiler, "__call__", compiling)
    trace_for(thunder.jit(lambda x: x + 1), torch.device("meta"), (torch.ones(2),), {})
    assert owned == [True]
