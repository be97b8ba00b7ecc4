"""Triton kernels of the program: a launch is one bound symbol, which writes to tensors."""

from __future__ import annotations

from typing import Any

from thunder_core.frontend.acquire.outside.call_traits import owner_of
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.tracing.capture.symbolic.numbers import concrete
from thunder_core.tracing.capture.torch_facts.modes import without_functions
from thunder_core.tracing.capture.torch_facts.triton_launches import plain_number
from thunder_core.tracing.capture.torch_facts.triton_writes import written_positions
from thunder_core.tracing.ir.tree import replace_leaves
from thunder_core.tracing.library.triton_kernels import grids_of, launch


def launch_kernel(run: TracedRun, method: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Record the launch of a kernel, for the method that launches it."""
    kernel, *positional = (*owner_of(method), *args)
    _launch(run, kernel, *positional, **kwargs)


def _launch(run: TracedRun, kernel: object, /, *args: Any, grid: object, warmup: bool = False, **kwargs: Any) -> None:
    run.outside.expand_whole(kernel)
    args, kwargs = replace_leaves(concrete((args, kwargs)), plain_number)
    grids = grids_of(kernel, concrete(grid), args, kwargs, lambda f, meta: concrete(run.machine.call(f, meta)))
    with without_functions():
        run.recorder.function(launch, (kernel, grids, args, kwargs, written_positions(kernel, args, kwargs)), {})
