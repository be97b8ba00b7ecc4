"""Data parallel training: average gradients over the ranks of a process group, in buckets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from thunder_core.backend.parallel.buckets import MEBIBYTE, BucketSizes
from thunder_core.backend.parallel.collectives import Schedule, is_call
from thunder_core.backend.parallel.gradients.sparse_gradients import require_strided_gradients
from thunder_core.backend.parallel.groups import required_group
from thunder_core.backend.parallel.operators import OPERATORS
from thunder_core.backend.parallel.replicas import replica_of
from thunder_core.backend.parallel.unreduced_gradients import UNSHARDED
from thunder_core.backend.quantization.layers import require_trained
from thunder_core.foundation.errors import OperationFailed
from thunder_core.passes.recipe import Transform
from thunder_core.tracing.analysis.aliasing import names_written_to
from thunder_core.tracing.capture.torch_facts.compiled_call import BESIDE, call_of
from thunder_core.tracing.capture.torch_facts.symbols import symbol_of
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol, renamed_proxies
from thunder_core.tracing.ir.trace import Trace

MODULE_ORIGINS = ("module.", "module[")  # the prefixes of the origins of a module's tensors


@dataclass(frozen=True)
class AverageGradients(Transform):
    """Average the gradients of a module's parameters over the ranks, as `DistributedDataParallel` does.

    `process_group` is the name of a process group; empty means the default group. A bucket of gradients is full at
    `bucket_cap_mb` MiB, the first bucket at 1 MiB. With `broadcast_buffers`, each call broadcasts the buffers from the
    first rank.
    """

    process_group: str = ""
    bucket_cap_mb: float = 25.0
    broadcast_buffers: bool = True

    before: ClassVar[tuple[str, ...]] = ("autocast", "cse", "dce")
    after: ClassVar[tuple[str, ...]] = ("quantize",)
    operations: ClassVar[tuple[str, ...]] = ("thunder_core.backend.parallel.operators",)
    is_parallel: ClassVar[bool] = True

    def prepare(self, model: torch.nn.Module) -> torch.nn.Module:
        """Return a replica with the values of the first rank; raise `OutsideProcessGroup` without a process group."""
        group = required_group(self.process_group, "ddp")
        require_trained(model, "ddp")
        return replica_of(model, group, broadcast_buffers=self.broadcast_buffers, has_values=True)

    def restructure(self, model: torch.nn.Module) -> torch.nn.Module:
        """Return a replica of a model whose tensors have no values yet, so that nothing is broadcast."""
        group = required_group(self.process_group, "ddp")
        return replica_of(model, group, broadcast_buffers=self.broadcast_buffers, has_values=False)

    def __call__(self, trace: Trace) -> Trace:
        """Return the trace with `replicate` of each parameter: an operation whose backward averages gradients."""
        marks = [bsym for bsym in trace.bound_symbols if is_call(bsym, "synchronize")]
        if not marks:
            return trace
        rest = [bsym for bsym in trace.bound_symbols if bsym not in marks]
        parameters = [proxy for proxy in trace.inputs if isinstance(proxy, TensorProxy) and is_parameter(proxy, trace)]
        require_unwritten(parameters, trace)
        require_own_programs(rest)
        require_strided_gradients(trace, {proxy.name for proxy in parameters}, "ddp")
        names = replica_names(parameters, trace)
        symbol = symbol_of(OPERATORS.replicate.default)
        group_name = marks[0].args[0]
        replicas = [BoundSymbol(symbol, (proxy, group_name), {}, names[proxy.name]) for proxy in parameters]
        bsyms = (*replicas, *(bsym.rename(names) for bsym in rest))
        return trace.having(bsyms, made_by="average gradients", output=renamed_proxies(trace.output, names))

    def before_claiming(self, trace: Trace) -> Trace:
        """Return the trace with the collectives that average gradients. For sharded parameters, `fsdp` adds them."""
        if any(
            is_call(bsym, name) for bsym in trace.bound_symbols for name in ("gather_parameter", "scatter_gradient")
        ):
            return trace
        cap = self.bucket_cap_mb * MEBIBYTE
        return Schedule(BucketSizes(first=min(MEBIBYTE, cap), following=cap))(trace)


def is_parameter(proxy: TensorProxy, trace: Trace) -> bool:
    """Whether a trace's input is a parameter of the module that requires a gradient.

    The unsharded leaves that a module stores for `fsdp` are not parameters.
    """
    origin = trace.origins.get(proxy.name, "")
    return proxy.requires_grad and origin.startswith(MODULE_ORIGINS) and UNSHARDED not in origin


def replica_names(parameters: list[TensorProxy], trace: Trace) -> dict[str, TensorProxy]:
    """Map the name of each parameter to a proxy with a new name, for the replica of the parameter."""
    names = {proxy.name for bsym in trace.bound_symbols for proxy in bsym.outputs}
    names |= {proxy.name for proxy in trace.inputs}
    replicas: dict[str, TensorProxy] = {}
    for proxy in parameters:
        name = f"{proxy.name}_replica"
        while name in names:
            name += "_"
        names.add(name)
        replicas[proxy.name] = replace(proxy, name=name, requires_grad=False)
    return replicas


def require_own_programs(bsyms: list[BoundSymbol]) -> None:
    """Raise `OperationFailed` for a separately compiled part with parameters, which would not read the replicas."""
    for bsym in bsyms:
        call, captured = call_of(bsym), bsym.kwargs.get(BESIDE, ())
        if call is not None and any(proxy.requires_grad for proxy in captured if isinstance(proxy, TensorProxy)):
            raise OperationFailed(
                f"`{call.name}` is compiled with its own settings, so the recipe ddp cannot average the gradients of "
                "its parameters",
                fix="compile the whole module only: thunder_core.compile(module, 'ddp')",
                where=bsym.source,
            )


def require_unwritten(parameters: list[TensorProxy], trace: Trace) -> None:
    """Raise `OperationFailed` for a program that writes to a parameter, because the ranks would diverge."""
    written = names_written_to(trace)
    name = next((trace.origins[proxy.name] for proxy in parameters if proxy.name in written), None)
    if name is not None:
        raise OperationFailed(
            f"the program writes to the parameter `{name}`, which the recipe ddp cannot do in a training step",
            fix="write to the parameter outside of the compiled module",
        )
