"""Refuse programs with sparse gradients, which the recipes `ddp` and `fsdp` cannot communicate."""

from __future__ import annotations

from collections.abc import Set

import torch

from thunder_core.foundation.errors import OperationFailed
from thunder_core.tracing.analysis.named_arguments import named_arguments
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace

OPTIONS = ("sparse", "sparse_grad")  # the arguments of aten operations whose gradients are then sparse


def require_strided_gradients(trace: Trace, names: Set[str], recipe: str) -> None:
    """Raise `OperationFailed` if the gradient of one of the named tensors is sparse.

    Every program is accepted while gradients are disabled.
    """
    if not torch.is_grad_enabled():
        return
    fix = "compute a strided gradient, for example by `torch.nn.Embedding(..., sparse=False)`"
    if recipe == "ddp":
        fix += ", or compile the module without `ddp` and wrap it in torch.nn.parallel.DistributedDataParallel"
    for bsym in trace.bound_symbols:
        for operation in bsym.operations:
            if names & {proxy.name for proxy in operation.inputs} and has_sparse_gradient(operation):
                raise OperationFailed(
                    f"the gradient of a parameter that `{bsym.symbol.short_name}` reads is sparse, and the recipe "
                    f"{recipe} does not communicate sparse gradients",
                    fix=fix,
                    where=bsym.source,
                )


def has_sparse_gradient(operation: BoundSymbol) -> bool:
    """Whether an aten operation is called with the option for sparse gradients."""
    target = operation.symbol.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    arguments = named_arguments(target, operation.args, operation.kwargs)
    return any(arguments.get(option) is True for option in OPTIONS)
