"""The handlers of higher-order operators: PyTorch's entry functions are interpreted and call the handler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import thunder_core as thunder
from thunder_core.foundation.errors import OperationFailed
from thunder_core.frontend.acquire.lookasides.operators import higher_order

X = torch.tensor([1.0, 2.0])


def test_operator_with_a_handler_is_recorded_by_the_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    """The handler receives the arguments of the operator, and can interpret the program's functions."""
    handlers: dict[str, higher_order.Handler] = {}
    monkeypatch.setattr(higher_order, "HANDLERS", handlers)

    @higher_order.higher_order("cond")
    def both(
        acquisition: Any, pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Any
    ) -> Any:
        results = [acquisition.machine.call(branch, *operands) for branch in (true_fn, false_fn)]
        return torch.where(pred, *results)

    scale = [2.0]

    def program(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda y: y * scale[0], lambda y: y - 1, (x,))

    compiled = thunder.jit(program)
    torch.testing.assert_close((compiled(X), compiled(-X)), (X * 2, -X - 1))
    scale[0] = 3.0
    torch.testing.assert_close(compiled(X), X * 3)  # reads of functions that the handler interprets are guarded
    assert thunder.cache_misses(compiled) == 2


def test_an_entry_function_checks_its_arguments_in_its_own_words() -> None:
    with pytest.raises(RuntimeError, match="Expect both branches to be callable"):
        thunder.jit(lambda x: torch.cond(x.sum() > 0, torch.sin, x, (x,)))(X)


def test_an_operator_without_a_handler_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(higher_order, "HANDLERS", {})
    with pytest.raises(OperationFailed, match="`cond` is a higher-order operator"):
        thunder.jit(lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), data_dependent="error")(X)
