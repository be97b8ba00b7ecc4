"""A trial of an executor: a small program of what executors take, run by it and compared with eager PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.nn import functional

from thunder_core.backend.claiming.check import checks_of
from thunder_core.backend.claiming.claim import claims_by_executor
from thunder_core.backend.claiming.executor import Executor
from thunder_core.backend.claiming.operator import Operator
from thunder_core.compilation.compiler import jit, last_program
from thunder_core.tracing.ir.trace import Trace

TOLERANCE = 1e-4  # float32, in which some kernels multiply with TF32
SIZES = (2, 4, 32, 64)  # batch, heads, sequence, features of a head


def written_out(input: torch.Tensor, inplace: bool = False) -> torch.Tensor:  # noqa: A002 - as PyTorch has it
    """SiLU by its definition, which an executor that checks others compares with eager PyTorch's."""
    return input * torch.sigmoid(input)


WRITTEN_OUT = Operator(functional.silu, written_out)


@dataclass(frozen=True)
class Trial:
    """The result of trying an executor on a device: how many operations it ran, or the problem."""

    device: str
    operations: int = 0
    problem: str = ""


def block(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: torch.Tensor, projection: torch.Tensor
) -> torch.Tensor:
    """Attention, a norm, a linear layer and a gate: something for each executor that ships."""
    attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    normed = functional.rms_norm(attended, (SIZES[-1],), scale, 1e-6)
    return functional.silu(functional.linear(normed, projection)) * attended + 1


def trials(executor: Executor) -> Iterator[Trial]:
    """A trial on each device that the executor says it can be had for."""
    devices = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    for device in devices:
        if executor.missing_on(torch.device(device)) is None:
            yield run_trial(executor, device)


def run_trial(executor: Executor, device: str) -> Trial:
    """One trial; whatever is raised, a wrong result, and what it refused, is the problem."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(SIZES, generator=generator).to(device) for _ in range(3))
    width = SIZES[-1]
    projection = (torch.randn(width, width, generator=generator) / width**0.5).to(device)
    inputs = (query, key, value, torch.ones(width, device=device), projection)
    try:
        with torch.no_grad():
            others = (WRITTEN_OUT,) if is_checker(executor) else ()
            compiled = jit(block, executors=(*others, executor.without_measuring(), "torch"))
            result, expected = compiled(*inputs), block(*inputs)
    except Exception as error:  # whatever it is, it is what users of the executor would meet
        return Trial(device, problem=f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}")
    trace = last_program(compiled).last("computation")
    worst = float((result - expected).abs().max())
    if not worst <= TOLERANCE:
        return Trial(device, problem=f"its result is off by {worst:.2g}")
    if is_checker(executor):
        return Trial(device, len(list(checks_of(trace.bound_symbols))))
    return judge_trial(executor.name, device, trace)


def is_checker(executor: Executor) -> bool:
    """Whether an executor checks what others run, and runs nothing itself."""
    return type(executor).check_claimed is not Executor.check_claimed


def judge_trial(name: str, device: str, trace: Trace) -> Trial:
    """A trial whose result is right, by what the executor runs of the trace, and what it refused."""
    refused = "; ".join(dict.fromkeys(one.reason for one in trace.refused if one.executor == name))
    return Trial(device, claims_by_executor(trace).get(name, 0), refused)
