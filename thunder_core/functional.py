"""`functional.jit`: compile functions that read only their arguments."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch

from thunder_core.backend.claiming.executor import Executor
from thunder_core.compilation import compiler
from thunder_core.foundation.errors import WrongInputs
from thunder_core.foundation.options.compile_options import MAX_PROGRAMS, CacheMode, SharpEdges
from thunder_core.foundation.options.symbolic_arguments import Given
from thunder_core.tracing.extension.lookaside import Lookaside
from thunder_core.tracing.extension.transform import Transform


def jit(
    function: Callable[..., Any],
    *,
    transforms: Sequence[Transform] = (),
    executors: Sequence[str | Executor] = ("torch",),
    cache: CacheMode = "constant values",
    sharp_edges: SharpEdges = "error",
    max_programs: int = MAX_PROGRAMS,
    symbolic: Given = (),
    lookasides: Sequence[Lookaside] = (),
    dump: str | os.PathLike[str] | None = None,
) -> Any:
    """Compile a function that reads no data except its arguments.

    A value that the function reads from a global, a closure or another object is a sharp edge. By default that is an
    error, which lists each read with its path and source line. With `sharp_edges="allow"`, such values are constants:
    they are bound when the function is compiled and not guarded afterwards. Functions, classes and modules that the
    function names are code, not data.

    Raises `WrongInputs` if the function is a module, because its parameters are not arguments, and the errors of `jit`.

    >>> import torch
    >>> scale = 3.0
    >>> jit(lambda x: x * scale, sharp_edges="allow")(torch.ones(2))
    tensor([3., 3.])
    """
    if isinstance(function, torch.nn.Module):
        raise WrongInputs(
            f"functional.jit takes functions; {type(function).__name__} is a module, which reads its own parameters",
            fix="use thunder_core.jit, or a function that takes the parameters (torch.func.functional_call)",
        )
    return compiler.jit(
        function,
        transforms=transforms,
        executors=executors,
        cache=cache,
        sharp_edges=sharp_edges,
        functional=True,
        max_programs=max_programs,
        symbolic=symbolic,
        lookasides=lookasides,
        dump=dump,
    )
