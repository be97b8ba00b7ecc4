"""`jit`: check the user's options and build the compiler."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch

from thunder_core.backend.claiming.executor import Executor, find_executor
from thunder_core.backend.claiming.operator import Operator
from thunder_core.compilation.compiler.binding import bind_compiler
from thunder_core.compilation.compiler.cleanup import CLEANUP_TRANSFORMS
from thunder_core.compilation.compiler.compiler import Compiler
from thunder_core.foundation.descriptions import object_of_class
from thunder_core.foundation.errors import WrongInputs
from thunder_core.foundation.options.compile_options import (
    MAX_PROGRAMS,
    CacheMode,
    CompileOptions,
    DataDependence,
    SharpEdges,
)
from thunder_core.foundation.options.left_out import left_out_texts
from thunder_core.foundation.options.symbolic_arguments import Given, symbolic_arguments
from thunder_core.foundation.tested_versions import require_tested_torch
from thunder_core.frontend.acquire.named import require_parameters
from thunder_core.passes.autodiff.rules import register_derivative
from thunder_core.tracing.extension.leaving_out import drop_left_out, require_modules, require_parts
from thunder_core.tracing.extension.lookaside import Lookaside, require_distinct
from thunder_core.tracing.extension.transform import Transform, order_transforms
from thunder_core.tracing.ir.dump import requested_dump


def jit(
    subject: Callable[..., Any],
    *,
    transforms: Sequence[Transform] = (),
    executors: Sequence[str | Executor] = ("torch",),
    cache: CacheMode = "constant values",
    sharp_edges: SharpEdges = "allow",
    functional: bool = False,
    data_dependent: DataDependence = "guard",
    memory_budget: float = 1.0,
    max_programs: int = MAX_PROGRAMS,
    symbolic: Given = (),
    lookasides: Sequence[Lookaside] = (),
    without: Sequence[str] = (),
    dump: str | os.PathLike[str] | None = None,
) -> Any:
    """Compile a function or a module at its first call, and again at each call that no compiled program accepts.

    For a module, the result is a module of the same class that shares all its state. For a function, the result is a
    function. `transforms` are applied in the order of their traits, before dead code is dropped. `executors` claim
    bound symbols in the given order, and eager PyTorch runs the rest.

    `cache` is one of:

    - `"constant values"`: a program serves all inputs that its guards accept;
    - `"symbolic values"`: sizes of tensors and numbers among the arguments are symbols, so that a program serves all
      inputs that satisfy its decisions;
    - `"same input"`: the first program serves every call, and an input that the program does not accept is an error;
    - `"no caching"`: every call is traced.

    `sharp_edges` controls operations that can be neither guarded nor replayed (the time, random numbers outside torch,
    input and output, opaque C state). `"allow"` records the results of such operations as constants. `"warn"` also
    warns. `"error"` raises an error that lists the operations. A `functional` program reads only its arguments: see
    `thunder_core.functional.jit`.

    `memory_budget` limits the tensors that a training step saves for its backward: a fraction (0.0 to 1.0) of the bytes
    that the step saves without a limit, or an integer number of bytes above 1. Below 1.0, the backward recomputes
    layers, beginning with the first layers; at 0.0, only the tensors between layers are saved. `examine_memory` reports
    the resulting memory.

    `data_dependent` controls programs that read the value of a tensor for a branch or a size. `"guard"` traces the
    program for the value, or for the outcome if the value is compared with a number, and traces again for each other
    value. From the ninth value of a source line on, eager PyTorch calls the function around the line, with a
    `RecompileWarning`. `"retrace"` traces again without this limit. `"error"` raises `DataDependent` at the first read.

    `max_programs` limits the number of programs; beyond this number, the least recently used program is dropped. A
    `RecompileWarning` reports the first program that is dropped. Another `RecompileWarning` is emitted when calls are
    traced again for the third time for the same reason.

    `symbolic` names sizes and numbers among the arguments that are symbols from the first call on, with every `cache`:
    `["input_ids.size(1)", "scale"]`, or with ranges `{"input_ids.size(1)": (1, 8192), "scale": None}`. Conditions that
    follow from a range need no guard. A call outside of the range is traced as if the name had not been given, with a
    `RecompileWarning`. If the decisions of a program exclude a part of the range, a `SpecializationWarning` reports
    that.

    `lookasides` are replacements of functions: wherever the program calls a replaced function, its replacement is
    called instead.

    `without` names transforms and executors to leave out (`"cse"`, `"inductor"`), and executors to leave out of some
    modules: with `"inductor:layers.3.mlp"`, the other executors run this module and its submodules, forward and
    backward. The part after the colon is a pattern with the wildcards of `fnmatch`, which matches a module's path or
    the end of the path.

    `dump` is a folder in which each program gets a subfolder. Each stage of its traces is written there as soon as it
    exists. The environment variable `THUNDER_LOGS` does the same without a code change.

    Raises `BadSymbolicArgument` for invalid names and ranges in `symbolic`, here or at a call without such an argument.
    Raises `UnknownName` for an unknown executor, and for a name in `without` that matches nothing. Raises `WrongInputs`
    if the subject is not callable, `RecipeConflict` for transforms that exclude each other and for two lookasides of
    one function, and `TorchNotTested` for a release of PyTorch on which Thunder was never tested.
    """
    require_tested_torch()
    require_list_and_callable(executors, subject)
    options = CompileOptions(
        cache=cache,
        sharp_edges=sharp_edges,
        functional=functional,
        data_dependent=data_dependent,
        memory_budget=memory_budget,
        max_programs=max_programs,
        symbolic=symbolic_arguments(symbolic),
        without=left_out_texts(without),
    )
    ordered = order_transforms((*transforms, *CLEANUP_TRANSFORMS))
    claiming = tuple(map(find_executor, executors))
    require_parts(options.without, ordered, claiming)
    remaining_parts = drop_left_out(ordered, options.without), drop_left_out(claiming, options.without)
    return compile_in_order(subject, *remaining_parts, options, lookasides, dump)


def require_list_and_callable(executors: object, subject: object) -> None:
    """Raise `WrongInputs` if `executors` is a single executor instead of a list, or if the subject cannot be called."""
    if isinstance(executors, str | Executor):
        raise WrongInputs(f"executors={executors!r:.80} is a single executor, not a list", fix="write executors=[...]")
    if not callable(subject):
        raise WrongInputs(
            f"jit takes a function or a module, not {object_of_class(type(subject))}",
            fix="write @classmethod above @jit" if isinstance(subject, classmethod) else "pass a callable",
        )
    if isinstance(subject, torch.jit.ScriptModule):
        raise WrongInputs("jit takes Python code, not a module of TorchScript", fix="compile the original module")


def compile_in_order(
    subject: Callable[..., Any],
    transforms: Sequence[Transform],
    executors: Sequence[Executor],
    options: CompileOptions,
    lookasides: Sequence[Lookaside] = (),
    dump: str | os.PathLike[str] | None = None,
) -> Any:
    """Compile a function or a module like `jit`. `transforms` are complete and in their final order."""
    require_parameters(subject, options.symbolic)
    if isinstance(subject, torch.nn.Module) and not isinstance(subject, torch.fx.GraphModule):
        require_modules(options.without, subject)
    current_dump = requested_dump(dump)  # the environment variable is read again at each compilation
    distinct_lookasides = require_distinct(lookasides)
    dump_argument = current_dump if dump is not None else None
    register_operators(executors)
    compiler = Compiler(
        tuple(transforms), tuple(executors), options, lookasides=distinct_lookasides, dump=dump_argument
    )
    return bind_compiler(compiler, subject)


def register_operators(executors: Sequence[Executor]) -> None:
    """Register the derivatives of the operators among the executors; their implementations have no other derivative."""
    for operator in executors:
        if isinstance(operator, Operator) and operator.derivative is not None:
            register_derivative(operator.implementation, setup_context=operator.setup_context)(operator.derivative)
