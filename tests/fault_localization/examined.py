"""Compile and examine small functions and models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import thunder_core as thunder
from thunder_core.backend.runtime.program import Program
from thunder_core.compilation.compiler.last_call import last_program
from thunder_core.workflow.fault_localization.examination import examine
from thunder_core.workflow.validation.internal_check import InternalCheck

silu = torch.nn.functional.silu


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    """Seeded random numbers."""
    return torch.randn(shape or (4, 8), generator=torch.Generator().manual_seed(seed))


def program_of(subject: Callable[..., Any], executors: Any = ("torch",), options: Any = None, **kwargs: Any) -> Program:
    """The program that serves a call."""
    compiled = thunder.jit(subject, executors=executors, **(options or {}))
    compiled(**{name: own(value) for name, value in kwargs.items()})
    program = last_program(compiled)
    assert isinstance(program, Program)
    return program


def own(value: Any) -> Any:
    """A copy of a tensor."""
    return value.detach().clone().requires_grad_(value.requires_grad) if isinstance(value, torch.Tensor) else value


def examine_call(
    subject: Callable[..., Any], executors: Any = ("torch",), options: Any = None, **kwargs: Any
) -> InternalCheck:
    """The report of an examination of the program that serves a call."""
    return examine(program_of(subject, executors, options, **kwargs), subject, (), kwargs)


def activating(function: Callable[[torch.Tensor], torch.Tensor]) -> thunder.OperatorExecutor:
    """An executor that computes `silu` with the given function."""
    executor = thunder.OperatorExecutor("mine")

    @executor.implements(silu)
    def my_silu(input: torch.Tensor, inplace: bool = False) -> torch.Tensor:  # noqa: A002
        return function(input)

    return executor


def silu_sum(x: torch.Tensor) -> torch.Tensor:
    """A product, `silu` and a sum over rows."""
    return silu(x * 2).sum(1) + 1
