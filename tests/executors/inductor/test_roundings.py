"""Regions round numbers where a program converts them to 16 bits and computes with the result in 32 bits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import thunder_core as thunder
from thunder_executors.inductor import EXECUTOR

pytestmark = pytest.mark.skipif(EXECUTOR.missing() is not None, reason="needs a C++ compiler")

X = torch.cat(
    [
        torch.randn(40, generator=torch.Generator().manual_seed(0)),
        torch.tensor([1e5, -3e38, 1e-8, 88.8, 1.0001, 1.9999, 0.00005, 2.1]),
    ]
)


def copy_and_read(x: Tensor) -> Tensor:
    rounded = torch.zeros_like(x, dtype=torch.bfloat16)
    rounded.copy_(x)
    return (x - rounded.float()) * 3


PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    "rounding error": lambda x: x - x.bfloat16().float(),
    "type promotion": lambda x: (x - x.half()) * 3,
    "overflow": lambda x: x.half().float() + 1,
    "float64": lambda x: (x.double() * 3).half().double() * 2,
    "product in float16": lambda x: x.half() * 1000,
    "view": lambda x: x.bfloat16().view(4, -1).float() * 2,
    "moved numbers": lambda x: torch.cat([x.half(), x.half()]).flip(0).float() + 1,
    "write": copy_and_read,
    "comparison": lambda x: (x.half() == x) | (x.bfloat16() > 1.0),
    "integers": lambda x: (x.clamp(-9, 9) + 0.9999).half().long() * 2,
    "constant": lambda x: torch.full_like(x, 0.1, dtype=torch.bfloat16).float() + x,
    "fill": lambda x: x.half().masked_fill(x > 0, 0.1).float() + 1,
    "number": lambda x: torch.where(x > 0, x.bfloat16(), 0.3).float() + 1,
    "padding": lambda x: functional.pad(x.bfloat16(), (1, 1), value=0.7).float() + 1,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_conversion_to_16_bits_and_back_rounds(name: str) -> None:
    compiled = thunder.jit(PROGRAMS[name], executors=("inductor", "torch"))
    torch.testing.assert_close(compiled(X), PROGRAMS[name](X), rtol=1e-6, atol=1e-9)
    assert any(bsym.executor == "inductor" for bsym in thunder.last_traces(compiled)[-1].bound_symbols)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("function", [torch.expm1, torch.atanh])
def test_function_is_accurate_near_zero(function: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    x = torch.tensor([1e-8, -1e-30, 1e-4, -0.5, 0.9] * 8, dtype=dtype)
    compiled = thunder.jit(lambda x: function(x * 1) * 2, executors=("inductor", "torch"))
    torch.testing.assert_close(compiled(x), function(x) * 2, rtol=1e-5, atol=0)
    assert any(bsym.executor == "inductor" for bsym in thunder.last_traces(compiled)[-1].bound_symbols)
