"""Triton kernels of the program: a launch is one bound symbol, which writes to tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.tracing.capture.symbolic.numbers import concrete
from thunder_core.tracing.capture.torch_facts.modes import without_functions
from thunder_core.tracing.capture.torch_facts.triton_launches import RUNS, plain_number
from thunder_core.tracing.capture.torch_facts.triton_writes import written_places
from thunder_core.tracing.ir.tree import replace_leaves
from thunder_core.tracing.library.triton_kernels import grids_of, launch


def launch_of(acquisition: TracedRun, function: Any, plain: Any) -> Callable[..., Any] | None:
    """Return the replacement of the method that launches a kernel; None for other functions."""
    if (plain.__module__, plain.__qualname__) not in RUNS:
        return None

    def run(*args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> None:
        kernel, *args = args if plain is function else (function.__self__, *args)  # type: ignore[assignment]
        acquisition.outside.expand_whole(kernel)
        args, kwargs = replace_leaves(concrete((tuple(args), kwargs)), plain_number)
        grids = grids_of(
            kernel, concrete(grid), args, kwargs, lambda f, meta: concrete(acquisition.machine.call(f, meta))
        )
        with without_functions():
            acquisition.recorder.function(
                launch, (kernel, grids, args, kwargs, written_places(kernel, args, kwargs)), {}
            )

    return run
