"""torch.autograd.Function: an operation with its own backward is one bound symbol, whatever it consists of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules._functions import BackwardHookFunction
from torch.utils.checkpoint import CheckpointFunction

from thunder_core.acquire.lookasides.table import lookaside
from thunder_core.autodiff.rules import applied
from thunder_core.capture.modes import without_functions
from thunder_core.capture.tensors import tensors_in

FOREIGN = (CheckpointFunction, BackwardHookFunction)  # they run functions of the user's, parts of the program


@lookaside(torch.autograd.Function.apply.__func__)  # type: ignore[attr-defined]
def apply(
    acquisition: Any, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any] | None:
    """Record it as one operation: its forward runs natively, on tensors without data."""
    kind = args[0]
    if issubclass(kind, FOREIGN) or not tensors_in(args[1:]):
        return None

    def run(kind: type[torch.autograd.Function], *args: Any, **kwargs: Any) -> Any:
        with without_functions():
            return acquisition.recorder.function(applied(kind), args, kwargs)

    return run
