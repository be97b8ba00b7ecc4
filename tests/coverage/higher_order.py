"""One higher-order operator of PyTorch's database: its samples under `jit` and in eager PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.testing._internal.hop_db import hop_db

from tests.coverage.finding import Finding
from tests.coverage.operators import SAMPLES, backward_of, caller, dtypes_of, forward, samples, some
from tests.coverage.outcome import twice

HIGHER_ORDER = {op.full_name: op for op in hop_db}


def examine(name: str) -> Iterator[Finding]:
    """Yield the findings on the results of an operator and its gradients."""
    op = HIGHER_ORDER[name]
    program = caller(op.op)
    for dtype in dtypes_of(op, supported(op)):
        yield from forward(op, dtype, "function", program, some(pairs_of(op, dtype), "function", SAMPLES["function"]))
    for dtype in dtypes_of(op, op.supported_backward_dtypes("cpu") if op.supports_autograd else ()):
        pairs = samples(op, dtype, requires_grad=True)
        yield from backward_of(dtype, "function", program, some(pairs, "function", SAMPLES["backward"]))
        if op.supports_gradgrad:
            yield from backward_of(dtype, "function", program, some(pairs, "function", SAMPLES["second"]), twice)


def supported(op: Any) -> set[torch.dtype]:
    """Return the data types of an operator on the CPU, or on CUDA if the operator is listed for CUDA only."""
    return set(op.supported_dtypes("cpu")) or set(op.supported_dtypes("cuda"))


def pairs_of(op: Any, dtype: torch.dtype) -> list[tuple[Any, Any]]:
    """Return the samples of a data type; there are none for integers that would require a gradient."""
    return samples(op, dtype) if op.name != "register_hook" or dtype.is_floating_point else []
