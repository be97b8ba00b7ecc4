"""Modules that wrap a model and communicate: they cannot be part of a program. The model inside can be compiled."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from thunder_core.foundation.errors import OperationFailed
from thunder_core.frontend.acquire.traced_run import TracedRun

DDP = (
    'compile the module inside with the recipe ddp: `thunder_core.compile(module, "ddp")`; or compile it and wrap it: '
    "`DistributedDataParallel(thunder_core.jit(module))`"
)
FSDP = (
    'compile the module inside with the recipe fsdp: `thunder_core.compile(module, "fsdp")`; or compile the `forward` '
    "of each module inside: `module.forward = thunder_core.jit(module.forward)`"
)
FIXES = {  # by the modules and names of their methods
    ("torch.nn.parallel.distributed", "DistributedDataParallel.forward"): DDP,
    ("torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel.forward"): FSDP,
}


def refuse_module(fix: str, run: TracedRun, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NoReturn:
    """Raise the error for a module whose reducer or shards the tracer cannot see, and store the error."""
    name = function.__qualname__.partition(".")[0]
    what = f"the program contains a module of class {name}, which communicates through hooks that the tracer cannot see"
    raise run.recorder.fail(OperationFailed(what, fix=fix, where=run.location().source))


PARALLEL_MODULES: dict[tuple[str, str], Callable[..., NoReturn]] = {
    name: partial(refuse_module, fix) for name, fix in FIXES.items()
}
