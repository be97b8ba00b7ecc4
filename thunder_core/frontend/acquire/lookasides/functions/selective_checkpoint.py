"""The contexts that a program passes to `torch.utils.checkpoint` as `context_fn`.

PyTorch's selective contexts have a policy, which chooses the operations whose results are saved. All other contexts are
entered around the checkpointed function.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import torch
from torch.utils.checkpoint import SAC_IGNORED_OPS, CheckpointPolicy, SelectiveCheckpointContext
from torch.utils.checkpoint import _CachingTorchDispatchMode as SavingMode

from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.tracing.capture.fakes.fake import fake_like
from thunder_core.tracing.capture.torch_facts.modes import without_functions
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.tree import replace_leaves

Policy = Callable[..., Any]  # (context, ATen operation, arguments) -> CheckpointPolicy, or whether to save
SAVING = (CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE)
PASSES_OUTPUT = "op_output" in inspect.signature(SelectiveCheckpointContext).parameters
UNENTERED_CONTEXT_EDGE = (
    "the second context of torch.utils.checkpoint is not entered, because the backward runs the traced operations"
)


def policy_of(context: object) -> Policy | None:
    """Return the policy of one of PyTorch's selective contexts; None for other contexts."""
    return context.policy_fn if type(context) is SavingMode else None


def call_within(run: TracedRun, context: object, call: Callable[[], Any]) -> Any:
    """Make a call within the first context of a checkpoint; its methods `__enter__` and `__exit__` are interpreted."""
    machine = run.machine
    run.note_edge(UNENTERED_CONTEXT_EDGE)
    stack = machine.call(ExitStack)
    machine.call(stack.enter_context, context)
    try:
        result = call()
    except BaseException:
        if not machine.call(stack.__exit__, *sys.exc_info()):
            raise
        return None
    machine.call(stack.__exit__, None, None, None)
    return result


def saved_operations(run: TracedRun, policy: Policy, bsyms: Iterable[BoundSymbol]) -> dict[str, frozenset[str]]:
    """Map the names that bound symbols define to the names of the ATen operations whose results a policy saves."""
    saved: dict[str, frozenset[str]] = {}
    end = len(run.recorder.bound_symbols)
    for bsym in bsyms:
        names = frozenset(operation.symbol.name for operation in bsym.operations if _is_saved(run, policy, operation))
        saved |= dict.fromkeys((proxy.name for proxy in bsym.defines), names) if names else {}
    # The operations of the policies themselves were recorded, too. They compute nothing for the program.
    run.recorder.replace_from(end, ())
    return saved


def _is_saved(run: TracedRun, policy: Policy, operation: BoundSymbol) -> bool:
    """Whether a policy, called with fakes as PyTorch calls it, saves the results of an ATen operation."""
    target = operation.symbol.target
    if not isinstance(target, torch._ops.OpOverload) or target in SAC_IGNORED_OPS:
        return False

    def fake(leaf: object) -> Any:
        return fake_like(leaf, run.recorder.tensors.mode) if isinstance(leaf, TensorProxy) else leaf

    with without_functions():
        args, kwargs, output = replace_leaves((operation.args, dict(operation.kwargs), operation.output), fake)
    options = {"is_recompute": False, **({"op_output": output} if PASSES_OUTPUT else {})}
    answer = run.machine.call(policy, SelectiveCheckpointContext(**options), target, *args, **kwargs)
    return answer if isinstance(answer, bool) else answer in SAVING
