"""A trial of an executor: it runs a small module of typical operations, and the result is compared with eager."""

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
from thunder_core.foundation.errors.tree import first_line
from thunder_core.tracing.ir.trace import Trace

TOLERANCE = 1e-4  # largest absolute error in float32; some kernels multiply with TF32
SIZES = (2, 4, 32, 64)  # batch, heads, sequence, features of a head


def silu_by_definition(input: torch.Tensor, inplace: bool = False) -> torch.Tensor:  # noqa: A002 - PyTorch's name
    """Compute SiLU as `x * sigmoid(x)`, so that an executor that checks results has a computed result to check."""
    return input * torch.sigmoid(input)


SILU_BY_DEFINITION = Operator(functional.silu, silu_by_definition)


@dataclass(frozen=True)
class Trial:
    """The result of trying an executor on a device.

    `operations` is the number of operations that the executor ran or, for a checking executor, the number of checks.
    `problem` says what failed, or why the executor refused operations; it is empty if there is no problem.
    """

    device: str
    operations: int = 0
    problem: str = ""


class Block(torch.nn.Module):
    """A module with operations for each executor of Thunder: attention, a norm, products, a convolution.

    On the CPU, there is also a mixture of experts, whose products not every GPU supports.
    """

    def __init__(self) -> None:
        super().__init__()
        _, heads, _, width = SIZES
        self.norm = torch.nn.RMSNorm(width, eps=1e-6)
        self.projection = torch.nn.Linear(width, width, bias=False)
        self.convolution = torch.nn.Conv2d(heads, heads, 3, padding=1)
        self.experts = torch.nn.Parameter(torch.empty(heads, width, width))

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Return a tensor of shape [batch, heads, sequence, features], as all inputs have."""
        attention = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        gated = functional.silu(self.projection(self.norm(attention))) * attention + 1
        mixed = self.multiply_by_experts(gated) if gated.is_cpu else gated
        return functional.relu(self.convolution(mixed))

    def multiply_by_experts(self, x: torch.Tensor) -> torch.Tensor:
        """Return the product of equal numbers of rows with each expert's weight."""
        rows, experts = x.flatten(0, 2), len(self.experts)
        offsets = torch.arange(1, experts + 1, dtype=torch.int32, device=x.device) * (len(rows) // experts)
        return functional.grouped_mm(rows, self.experts.transpose(1, 2), offs=offsets).view(x.shape)


def create_block(device: str, generator: torch.Generator) -> Block:
    """Create a block on a device, with random weights."""
    block = Block()
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / parameter.shape[-1] ** 0.5)
    return block.to(device).eval()


def run_trials(executor: Executor) -> Iterator[Trial]:
    """Run a trial on each device on which the executor is available, and yield the results."""
    devices = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    for device in devices:
        if executor.missing_on(torch.device(device)) is None:
            yield run_trial(executor, device)


def run_trial(executor: Executor, device: str) -> Trial:
    """Run the trial module on an executor and a device. An error, a wrong result or a refusal becomes the problem."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(SIZES, generator=generator).to(device) for _ in range(3))
    block = create_block(device, generator)
    try:
        with torch.no_grad():
            checked = (SILU_BY_DEFINITION,) if is_checker(executor) else ()
            compiled = jit(block, executors=(*checked, executor.without_measuring(), "torch"))
            result, expected = compiled(query, key, value), block(query, key, value)
    except Exception as error:  # users of the executor would get the same error
        return Trial(device, problem=f"{type(error).__name__}: {first_line(error)}")
    trace = last_program(compiled).last("computation")
    largest_error = float((result - expected).abs().max())
    if not largest_error <= TOLERANCE:  # also true for NaN
        return Trial(device, problem=f"its result differs from eager PyTorch by {largest_error:.2g}")
    if is_checker(executor):
        return Trial(device, len(list(checks_of(trace.bound_symbols))))
    return judge_trial(executor.name, device, trace)


def is_checker(executor: Executor) -> bool:
    """Whether an executor checks the results of other executors, and runs no operations itself."""
    return type(executor).check_claimed is not Executor.check_claimed


def judge_trial(name: str, device: str, trace: Trace) -> Trial:
    """Return a trial whose result is correct: how many operations the executor ran, and why it refused others.

    Operations that are left to PyTorch because another executor is faster, or because nothing was measured, are no
    problem.
    """
    refusals = [refusal for refusal in trace.refused if refusal.executor == name and not refusal.by_measurement]
    reasons = "; ".join(dict.fromkeys(refusal.reason for refusal in refusals))
    return Trial(device, claims_by_executor(trace).get(name, 0), reasons)
