"""torch.autograd: a backward pass of the program runs on fakes, and is recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from thunder_core.acquire.lookasides.table import lookaside
from thunder_core.capture.gradients import AUTOGRAD
from thunder_core.errors import ThunderError


@lookaside(torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad)
def differentiate(
    acquisition: Any, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any]:
    """Leave it to the recorder, which sees what the engine does."""

    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return AUTOGRAD[function](acquisition.recorder.gradients, *args, **kwargs)
        except ThunderError as error:
            error.where = error.where or acquisition.place().source
            acquisition.recorder.failure = error
            raise

    return run
