"""Bind a compiler to a subject: the compiled function or module, whose calls are compiled when they are made."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch

from thunder_core.backend.runtime.compiled import Specializations
from thunder_core.backend.runtime.module import compiled_function, compiled_module
from thunder_core.backend.runtime.program_compiler import ProgramCompiler
from thunder_core.foundation.options.compile_options import CompileOptions
from thunder_core.passes.recipe import Transform


class BindableCompiler(ProgramCompiler, Protocol):
    """A compiler of calls with the options and the transforms of `jit`."""

    @property
    def options(self) -> CompileOptions:
        """The options of the compiler."""

    @property
    def transforms(self) -> tuple[Transform, ...]:
        """The transforms in their order."""


def bind_compiler(compiler: BindableCompiler, subject: Callable[..., Any]) -> Any:
    """Return the compiled subject, whose calls the compiler compiles; copies of a module have the same settings."""
    call = Specializations(subject, compiler, compiler.options)
    if not isinstance(subject, torch.nn.Module):
        return compiled_function(call)
    forward = Specializations(subject.forward, compiler, compiler.options)
    methods = {name: method for transform in compiler.transforms for name, method in transform.methods(subject).items()}
    compile_other = partial(bind_compiler, compiler)
    callables = (transform.before_call(subject) for transform in compiler.transforms)
    before_call = [function for function in callables if function is not None]
    return compiled_module(call, forward, compile_other, methods, compile_other, before_call)
