"""The executors' shares of the time of a program, for its forward and its backward if it has one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from thunder_core.backend.runtime.generate import executable
from thunder_core.backend.runtime.program import Program
from thunder_core.passes.autodiff.autograd_node import with_layout
from thunder_core.tracing.ir.printer import print_trace
from thunder_core.workflow.benchmark.time_shares import TimedTrace, time_shares


@dataclass(frozen=True)
class TimeShares:
    """Each executor's share of the time of a call, 0 to 1; forward and backward together add up to 1."""

    forward: Mapping[str, float] = field(default_factory=dict)
    backward: Mapping[str, float] = field(default_factory=dict)


def program_shares(program: Program, model: torch.nn.Module, inputs: dict[str, Any]) -> TimeShares:
    """Run a program for a call of the model with these inputs, and return the executors' shares of the time."""
    tensors, _ = program.prepare(model, (), inputs)
    forward = TimedTrace(program.last("computation"), lambda: tensors)
    parts = [forward, *_backward(program, tensors)]
    is_recorded = program.derivative is None and torch.is_grad_enabled()  # by autograd; the program may use gradients
    with torch.set_grad_enabled(is_recorded):
        shares = time_shares(*parts, device=next(model.parameters()).device)
    return TimeShares(*shares)


def _backward(program: Program, tensors: Any) -> list[TimedTrace]:
    """Return the backward that was compiled last, with ones as gradients."""
    if program.derivative is None:
        return []
    signature, stage = program.derivative.signature, program.stages_of("backward")[-1]
    with torch.no_grad():
        outputs = executable(print_trace(program.last("computation")), "computation")(*tensors)
    pairs = zip(signature.results, signature.layouts, stage.has_cotangent, strict=True)
    gradients = [
        with_layout(torch.ones_like(outputs[index]), layout) for index, layout, has_gradient in pairs if has_gradient
    ]
    return [TimedTrace(stage.trace, lambda: [[*outputs[signature.count :], *gradients]])]
