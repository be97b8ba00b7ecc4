"""Tracing a call for a device that this machine may not have, with the machine code of its kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from thunder_core.backend.cache.built_for import built_for
from thunder_core.backend.claiming.device_code import DeviceCode, targeting
from thunder_core.backend.runtime.compiled import COMPILING
from thunder_core.backend.runtime.program import Program
from thunder_core.backend.runtime.retraces import subject_name
from thunder_core.compilation.compiler.compiler import Compiler
from thunder_core.compilation.compiler.last_call import specializations_of
from thunder_core.foundation.errors import WrongInputs


def trace_for(
    compiled: Any, device: torch.device, args: tuple[Any, ...], kwargs: dict[str, Any], *, target: str = ""
) -> tuple[Program, tuple[DeviceCode, ...]]:
    """Trace a call for a device that this machine may not have. The program is added to the cache and does not run.

    Also return the machine code of its kernels, compiled for a GPU of the architecture `target` (`sm_90`).
    """
    cache = specializations_of(compiled)
    if not isinstance(cache.compiler, Compiler):
        raise WrongInputs("this module was loaded from an artifact", fix="pass the result of jit or compile")
    compiler = replace(cache.compiler, device=device)
    with built_for(subject_name(cache.subject)):
        with COMPILING, targeting(target):
            program = compiler(cache.subject, args, kwargs)
            cache.add(program)
            cache.last = program
            cache.misses += 1
        claimed = program.last("computation")
        kernels = [code for executor in compiler.executors for code in executor.device_code(claimed, target)]
    return program, tuple(kernels)
