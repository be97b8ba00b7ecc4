"""torch.autograd: a backward pass of the program runs on fakes, and is recorded."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from thunder_core.acquire.lookasides.table import lookaside
from thunder_core.capture.recorder import AUTOGRAD


@lookaside(torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad)
def differentiate(
    acquisition: Any, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any]:
    """Leave it to the recorder, which sees what the engine does."""

    def run(*args: Any, **kwargs: Any) -> Any:
        return AUTOGRAD[function](acquisition.recorder.gradients, *args, **kwargs)

    return run


@lookaside(checkpoint)
def recompute(
    acquisition: Any, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any]:
    """Past the wrapper that keeps Dynamo away, and everything else that wants to see what is called."""
    return lambda *args, **kwargs: acquisition.machine.call(inspect.unwrap(function), *args, **kwargs)
