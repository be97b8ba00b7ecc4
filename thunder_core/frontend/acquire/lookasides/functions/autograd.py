"""torch.autograd: backward passes that a program runs. Each pass runs on fakes and is recorded."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import torch

from thunder_core.foundation.errors import ThunderError
from thunder_core.frontend.acquire.lookaside_table import lookaside_of_each
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.tracing.capture.gradients import AUTOGRAD, hooks_in
from thunder_core.tracing.capture.transform_levels import wrapped_tensors

FIX_FOR_ANOMALIES = "turn anomaly detection off once the cause of the NaN is found"


@lookaside_of_each(torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad)
def differentiate(function: Callable[..., Any], run: TracedRun, /, *args: Any, **kwargs: Any) -> Any:
    """Run autograd's engine under the recorder, and interpret the program's functions that the engine calls.

    With anomaly detection, eager PyTorch makes the call: its engine looks for NaN in the gradients of each node.
    """
    if not run.options.interprets_autograd_functions and run.machine.call(torch.is_anomaly_enabled):
        run.leave_to_eager("the program runs a backward pass with anomaly detection", FIX_FOR_ANOMALIES)
    if wrapped_tensors((args, kwargs)):
        return differentiate_in_levels(run, function, args, kwargs)

    def engine(_called: object, *args: Any, **kwargs: Any) -> Any:
        return AUTOGRAD[function](run.recorder.gradients, *args, **kwargs)

    try:
        roots = args[0] if args else kwargs.get("outputs", kwargs.get("tensors"))
        called = run.recorder.gradients.functions_called(roots)
        return run.machine.call_unreported(engine, (called, *args), kwargs)
    except ThunderError as error:
        error.where = error.where or run.location().source
        run.recorder.fail(error)
        raise


def differentiate_in_levels(
    run: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run autograd's engine on tensors inside a function transform, and record the operations below the transform.

    The engine calls the program's hooks, which are interpreted.
    """

    def engine(_called: object, *args: Any, **kwargs: Any) -> Any:
        with torch.autograd.set_multithreading_enabled(False):
            return run.recorder.levels.call(function, args, kwargs)

    called = [*chain(*map(hooks_in, run.recorder.gradients.hooks))]
    return run.machine.call_unreported(engine, (called, *args), kwargs)
