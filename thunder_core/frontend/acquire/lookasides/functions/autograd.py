"""torch.autograd: a program's backward pass runs on fakes and is recorded."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any

import torch

from thunder_core.foundation.errors import ThunderError
from thunder_core.frontend.acquire.lookasides.table import lookaside
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.tracing.capture.gradients import AUTOGRAD, called_by
from thunder_core.tracing.capture.transform_levels import wrapped_in


@lookaside(torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad)
def differentiate(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any]:
    """Run autograd's engine under the recorder, and interpret the program's functions that the engine calls."""
    if wrapped_in((args, kwargs)):
        return partial(differentiate_in_levels, acquisition, function)

    def engine(_called: Any, *args: Any, **kwargs: Any) -> Any:
        return AUTOGRAD[function](acquisition.recorder.gradients, *args, **kwargs)

    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            called = acquisition.recorder.gradients.functions_called(args[0])
            return acquisition.machine.natively(engine, (called, *args), kwargs)
        except ThunderError as error:
            error.where = error.where or acquisition.place().source
            acquisition.recorder.failure = error
            raise

    return run


def differentiate_in_levels(acquisition: TracedRun, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run autograd's engine on tensors inside a function transform, and record the operations below the transform.

    The engine calls the program's hooks, which are interpreted.
    """

    def engine(_called: Any, *args: Any, **kwargs: Any) -> Any:
        with torch.autograd.set_multithreading_enabled(False):
            return acquisition.recorder.levels.call(function, args, kwargs)

    called = [*chain(*map(called_by, acquisition.recorder.gradients.hooks))]
    return acquisition.machine.natively(engine, (called, *args), kwargs)
