"""A trial of an executor: a small program with typical operations, compared with eager PyTorch."""

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


def silu_by_definition(input: torch.Tensor, inplace: bool = False) -> torch.Tensor:  # noqa: A002 - PyTorch's name
    """Compute SiLU by its definition, so that an executor that checks others can compare it with eager PyTorch's."""
    return input * torch.sigmoid(input)


SILU_BY_DEFINITION = Operator(functional.silu, silu_by_definition)


@dataclass(frozen=True)
class Trial:
    """The result of trying an executor on a device: the number of operations that it ran, or the problem."""

    device: str
    operations: int = 0
    problem: str = ""


class Block(torch.nn.Module):
    """Attention, a norm, a linear layer, a gate and a convolution: operations for each included executor."""

    def __init__(self) -> None:
        super().__init__()
        _, heads, _, width = SIZES
        self.norm = torch.nn.RMSNorm(width, eps=1e-6)
        self.projection = torch.nn.Linear(width, width, bias=False)
        self.convolution = torch.nn.Conv2d(heads, heads, 3, padding=1)

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Return [batch, heads, sequence, features]."""
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        gated = functional.silu(self.projection(self.norm(attended))) * attended + 1
        return functional.relu(self.convolution(gated))


def block_on(device: str, generator: torch.Generator) -> Block:
    """Return a block on a device, with random weights."""
    block = Block()
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / parameter.shape[-1] ** 0.5)
    return block.to(device).eval()


def trials(executor: Executor) -> Iterator[Trial]:
    """Yield a trial on each device on which the executor is available."""
    devices = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    for device in devices:
        if executor.missing_on(torch.device(device)) is None:
            yield run_trial(executor, device)


def run_trial(executor: Executor, device: str) -> Trial:
    """Run one trial; an error, a wrong result or a refusal is the problem."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(SIZES, generator=generator).to(device) for _ in range(3))
    block = block_on(device, generator)
    try:
        with torch.no_grad():
            others = (SILU_BY_DEFINITION,) if is_checker(executor) else ()
            compiled = jit(block, executors=(*others, executor.without_measuring(), "torch"))
            result, expected = compiled(query, key, value), block(query, key, value)
    except Exception as error:  # users of the executor would get the same error
        return Trial(device, problem=f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}")
    trace = last_program(compiled).last("computation")
    worst = float((result - expected).abs().max())
    if not worst <= TOLERANCE:
        return Trial(device, problem=f"its result is off by {worst:.2g}")
    if is_checker(executor):
        return Trial(device, len(list(checks_of(trace.bound_symbols))))
    return judge_trial(executor.name, device, trace)


def is_checker(executor: Executor) -> bool:
    """Whether an executor checks other executors, and runs nothing itself."""
    return type(executor).check_claimed is not Executor.check_claimed


def judge_trial(name: str, device: str, trace: Trace) -> Trial:
    """Return a trial with a right result: the operations that the executor ran, and the reasons for refusals."""
    refused = "; ".join(dict.fromkeys(refusal.reason for refusal in trace.refused if refusal.executor == name))
    return Trial(device, claims_by_executor(trace).get(name, 0), refused)
