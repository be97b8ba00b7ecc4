"""The kernels of an artifact that is made on a GPU: machine code for the architecture of each GPU of its programs."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence

import torch

from thunder_core.backend.cache.built_for import record_model
from thunder_core.backend.claiming.device_code import DeviceCode
from thunder_core.backend.claiming.executor import Executor
from thunder_core.backend.runtime.program import Program
from thunder_core.foundation.errors import ThunderError
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.trace import Trace


def kernels_on_gpus(programs: Iterable[Program], executors: Sequence[Executor], subject: str) -> tuple[DeviceCode, ...]:
    """Return the machine code of the kernels that programs launch on this machine's GPUs, without duplicates.

    A warning reports kernels that cannot be stored; a process that loads the artifact compiles these kernels.
    """
    with record_model(subject):
        kernels = [code for program in programs for code in kernels_of_program(program, executors)]
    return tuple({(code.executor, code.image): code for code in kernels}.values())


def kernels_of_program(program: Program, executors: Sequence[Executor]) -> Iterator[DeviceCode]:
    """Yield the machine code of the kernels that executors launch in a program, for each GPU of its tensors."""
    for trace in running_traces(program):
        for target in architectures_of(trace):
            for executor in executors:
                yield from stored_kernels(trace, executor, target)


def running_traces(program: Program) -> tuple[Trace, ...]:
    """Return the last trace of the computation and of each backward of a program."""
    stages = [stage for name in ("computation", "backward") for stage in program.stages_of(name)]
    return tuple({(stage.trace.name, stage.has_cotangent): stage.trace for stage in stages}.values())


def architectures_of(trace: Trace) -> Iterator[str]:
    """Yield the architectures of the GPUs that a trace's tensors are on, by NVIDIA's names (`sm_90`)."""
    if not has_gpu():
        return
    proxies = (proxy for bsym in trace.bound_symbols for proxy in (*bsym.inputs, *bsym.outputs))
    devices = {proxy.device for proxy in proxies if isinstance(proxy, TensorProxy) and proxy.device.type == "cuda"}
    yield from sorted({"sm_{}{}".format(*torch.cuda.get_device_capability(device)) for device in devices})


def has_gpu() -> bool:
    """Whether this machine has a GPU. Without a GPU, programs on CUDA were cross-compiled and did not run here."""
    return torch.cuda.is_available()


def stored_kernels(trace: Trace, executor: Executor, target: str) -> Sequence[DeviceCode]:
    """Return the machine code of an executor's kernels in a trace; empty, with a warning, if it cannot be compiled."""
    if executor.missing_for(target):
        return ()
    try:
        return executor.device_code(trace, target)
    except ThunderError as error:
        warnings.warn(
            f"kernels of the executor {executor.name} are not stored in the artifact: {error.what}",
            RuntimeWarning,
            stacklevel=2,
        )
        return ()
