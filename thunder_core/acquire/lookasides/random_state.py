"""The state of the random number generator, read and put back by the program: lines of the trace, in their order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from thunder_core.acquire.lookasides.table import lookaside
from thunder_core.capture.symbols import symbol_of
from thunder_core.ir.symbol import BoundSymbol


@lookaside(torch.get_rng_state)
def get_rng_state(
    acquisition: Any, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any]:
    """The state is a tensor that the line makes; what draws after it has the numbers of its own call."""

    def run() -> torch.Tensor:
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            state: torch.Tensor = acquisition.recorder.tensors.like(function())
        made = acquisition.recorder.proxy_of(state)
        acquisition.recorder.emit(BoundSymbol(symbol_of(function), (), {}, made, ordered=True))
        return state

    return run


@lookaside(torch.set_rng_state)
def set_rng_state(
    acquisition: Any, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any]:
    """Tracing itself leaves the generator as it is."""

    def run(new_state: torch.Tensor) -> None:
        given = acquisition.recorder.proxy_of(new_state)
        acquisition.recorder.emit(BoundSymbol(symbol_of(function), (given,), {}, None, ordered=True))

    return run
