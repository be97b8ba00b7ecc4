"""Inputs and the names of claimed bound symbols, for the tests of patterns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import thunder_core as thunder
from thunder_core.backend.claiming.executor import OperatorExecutor

Function = Callable[..., Any]


def example(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


X, Y, Z = example(2, 3, 8), example(2, 3, 8, seed=1), example(8, seed=2)


def claimed_names(
    pattern: Function, program: Function, *args: Any, by: Function | None = None, **options: Any
) -> list[str]:
    """The names of the lines that a pattern's executor runs. The result must equal eager's to the bit."""
    executor = OperatorExecutor("mine")
    executor.replaces(pattern, **options)(by or pattern)
    compiled = thunder.jit(program, executors=[executor, "torch"])
    before = [arg.clone() if isinstance(arg, Tensor) else arg for arg in args]
    expected = program(*(arg.clone() if isinstance(arg, Tensor) else arg for arg in before))
    torch.testing.assert_close(compiled(*args), expected, rtol=0, atol=0)
    claimed_names.refused = executor.replacements[0].pattern.refused
    lines = thunder.last_traces(compiled)[-1].bound_symbols
    return [bsym.symbol.short_name for bsym in lines if bsym.executor == "mine"]


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.to(torch.float32)
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


def scaled_exp(x: Tensor) -> Tensor:
    return (x * 2).exp() + 1
