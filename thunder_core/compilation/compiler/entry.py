"""`jit`: what a user asks of a compiler, checked and brought together."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch

from thunder_core.backend.claiming.executor import Executor, find_executor
from thunder_core.backend.claiming.operator import Operator
from thunder_core.compilation.compiler.cleanup import CLEANUP_TRANSFORMS
from thunder_core.compilation.compiler.compiler import Compiler, compiled_by
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
from thunder_core.tracing.extension.leaving_out import remaining, require_modules, require_parts
from thunder_core.tracing.extension.lookaside import Lookaside, require_distinct
from thunder_core.tracing.extension.transform import Transform, order_transforms
from thunder_core.tracing.ir.dump import asked_dump


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
    """Compile a function or a module; the work is done at the first call, and again for inputs that differ.

    A module gives a module of the same class that shares all its state; a function gives a function. `transforms`
    are applied in the order of their traits, before dead code is dropped; `executors` claim bound symbols in the order
    given, and eager PyTorch runs the rest. `cache` is `"constant values"` (a program serves all inputs that its guards
    take), `"symbolic values"` (sizes of tensors, and numbers, among the arguments are symbols, so that a program serves
    all that satisfy what was decided by them), `"same input"` (the first program serves every call, and an input that
    it does not take is refused) or `"no caching"` (trace at each call).

    `sharp_edges` says what becomes of what can be neither guarded nor replayed (the time, random numbers outside torch,
    input and output, opaque C state): `"allow"` bakes it into the trace, `"warn"` says so, `"error"` refuses it with
    the list. A `functional` program reads nothing but its arguments: see `thunder_core.functional.jit`.

    `memory_budget` bounds what a training step saves for its backward: a part (0.0 to 1.0) of what it would save, or,
    as an integer above 1, bytes. Below 1.0, layers are computed once more in the backward, the first ones first; at 0.0
    only what passes from layer to layer is saved. `examine_memory` tells what that comes to.

    `data_dependent` says what becomes of a program that asks for the value of a tensor, for a branch or a size:
    `"guard"` traces it for the value that it gets, or for the outcome of what it compares a number with, and again when
    a call gets another one, but raises `DataDependent` at the ninth value of one line; `"retrace"` goes on tracing;
    `"error"` refuses the first.

    `max_programs` bounds how many programs are kept; where there would be more, the one that was used longest ago goes.
    That, and tracing again a third time for one reason, is said once, by a `RecompileWarning`.

    `symbolic` names sizes and numbers among the arguments that are symbols from the first call on, whatever `cache`
    says: `["input_ids.size(1)", "scale"]`, or with ranges `{"input_ids.size(1)": (1, 8192), "scale": None}`. What a
    range implies is decided without a guard. A call outside of it is traced as if the name had not been given, with a
    `RecompileWarning`; a program that does not serve the whole range, by what it decides, with a
    `SpecializationWarning`.

    `lookasides` are functions that are called in place of others, wherever the program calls these.

    `without` names transforms and executors that are left out (`"cse"`, `"inductor"`), and executors that are left out
    of some modules: `"inductor:layers.3.mlp"` leaves that module, and all that it contains, to the other executors,
    forward and backward. The pattern is one of `fnmatch` for a module's path or the end of it.

    `dump` is a folder in which each program gets a folder of its own, with every stage of its traces as a file, written
    as soon as it is there. `THUNDER_LOGS` in the environment asks for that without a change of code.

    Raises `BadSymbolicArgument` for names and ranges in `symbolic` that cannot be, here or at a call that has nothing
    of that name, `UnknownName` for an executor that does not exist, and for a name in `without` that nothing has,
    `WrongInputs` for a subject that cannot be called, and `RecipeConflict` for transforms that exclude each other and
    for two lookasides for one function.
    `TorchNotTested` is raised for a release of PyTorch that the tests of Thunder were never run on.
    """
    require_tested_torch()
    if isinstance(executors, str | Executor):
        raise WrongInputs(f"executors={executors!r:.80} is a single executor, not a list", fix="write executors=[...]")
    if not callable(subject):
        raise WrongInputs(f"jit takes a function or a module, not a {type(subject).__name__}", fix="pass a callable")
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
    left = remaining(ordered, options.without), remaining(claiming, options.without)
    return compile_in_order(subject, *left, options, lookasides, dump)


def compile_in_order(
    subject: Callable[..., Any],
    transforms: Sequence[Transform],
    executors: Sequence[Executor],
    options: CompileOptions,
    lookasides: Sequence[Lookaside] = (),
    dump: str | os.PathLike[str] | None = None,
) -> Any:
    """Compile a function or a module as `jit` does, by transforms that are in order, those for cleaning up included."""
    require_parameters(subject, options.symbolic)
    if isinstance(subject, torch.nn.Module) and not isinstance(subject, torch.fx.GraphModule):
        require_modules(options.without, subject)
    asked = asked_dump(dump)  # what the environment asks for is looked up again when something is compiled
    replaced = require_distinct(lookasides)
    dumped = asked if dump is not None else None
    register_operators(executors)
    compiler = Compiler(tuple(transforms), tuple(executors), options, lookasides=replaced, dump=dumped)
    return compiled_by(compiler, subject)


def register_operators(executors: Sequence[Executor]) -> None:
    """Make the derivatives of operators known, which belong to their implementations alone."""
    for operator in executors:
        if isinstance(operator, Operator) and operator.derivative is not None:
            register_derivative(operator.implementation, setup_context=operator.setup_context)(operator.derivative)
