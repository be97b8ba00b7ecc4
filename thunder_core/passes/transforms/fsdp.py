"""Fully sharded training: gather parameters where a program reads them, and reduce-scatter gradients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

import torch

from thunder_core.backend.parallel.buckets import MEBIBYTE, BucketSizes, result_of, tensor_of
from thunder_core.backend.parallel.collectives import Schedule, is_call
from thunder_core.backend.parallel.emitter import Emitter
from thunder_core.backend.parallel.gradients.sparse_gradients import require_strided_gradients
from thunder_core.backend.parallel.groups import required_group
from thunder_core.backend.parallel.offload import parse_offload_policy
from thunder_core.backend.parallel.operators import OPERATORS
from thunder_core.backend.parallel.shards import follow_requires_grad, sharding_in
from thunder_core.backend.quantization.layers import require_trained
from thunder_core.foundation.errors import BadOption, OperationFailed
from thunder_core.passes.recipe import Transform
from thunder_core.tracing.analysis.aliasing import names_written_to
from thunder_core.tracing.ir.proxy import Proxy, TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol, renamed_proxies
from thunder_core.tracing.ir.trace import Trace

GIBIBYTE = 1 << 30


@dataclass(frozen=True)
class ShardParameters(Transform):
    """Shard parameters over the ranks, as `torch.distributed.fsdp.fully_shard` does.

    `process_group` is the name of a process group; empty means the default group. A bucket contains parameters or
    gradients of one layer, at most about `bucket_cap_mb` MiB. With `reshard_after_forward`, the backward gathers the
    parameters again; otherwise the forward saves them. `reduce_dtype` is the name of the dtype in which gradients are
    reduced; empty means the dtype of the gradients.

    With `max_in_flight_gb`, parameters are gathered as early as possible while gathered parameters and full gradients
    take at most this number of GiB; with 0, a bucket is gathered while the previous bucket is in use. In combination
    with `ddp`, the shards are replicated over another group, and gradients are averaged over both groups. With the
    `offload_policy` `CPUOffloadPolicy`, shards and their gradients are in the memory of the CPU.
    """

    process_group: str = ""
    bucket_cap_mb: float = 25.0
    reshard_after_forward: bool = True
    reduce_dtype: str = ""
    max_in_flight_gb: float = 0.0
    offload_policy: str = ""

    before: ClassVar[tuple[str, ...]] = ("autocast", "cse", "dce")
    after: ClassVar[tuple[str, ...]] = ("quantize", "ddp", "tensor_parallel")
    operations: ClassVar[tuple[str, ...]] = ("thunder_core.backend.parallel.operators",)
    is_parallel: ClassVar[bool] = True

    def prepare(self, model: torch.nn.Module) -> torch.nn.Module:
        """Replace the parameters of the model by shards; raise `OutsideProcessGroup` without a process group."""
        dtype, offload = self._dtype(), parse_offload_policy(self.offload_policy)
        group = required_group(self.process_group, "fsdp")
        require_trained(model, "fsdp")
        reshard = self.reshard_after_forward
        sharding = sharding_in(group, model, reshard_after_forward=reshard, reduce_dtype=dtype, offload=offload)
        return sharding.shard(model)

    def before_call(self, model: torch.nn.Module) -> Callable[[], None]:
        """Return a function that copies `requires_grad` from each parameter to its shard before a call."""
        return follow_requires_grad(model)

    def __call__(self, trace: Trace) -> Trace:
        """Return the trace that gathers each parameter once; raise `OperationFailed` for a write to a parameter."""
        require_unwritten(trace)
        require_strided_gradients(trace, trained_parameters(trace), "fsdp")
        first: dict[str, Proxy] = {}
        names: dict[str, Proxy] = {}
        bsyms: list[BoundSymbol] = []
        for bsym in trace.bound_symbols:
            renamed = bsym.rename(names) if names else bsym
            if is_call(bsym, "gather_parameter"):
                result = result_of(renamed)
                earlier = first.setdefault(tensor_of(renamed).name, result)
                if earlier is not result:
                    names[result.name] = earlier
                    continue
            bsyms.append(renamed)
        shared = trace.having(bsyms, made_by="share gathered parameters", output=renamed_proxies(trace.output, names))
        return with_casts_of_shards(shared)

    def before_claiming(self, trace: Trace) -> Trace:
        """Return the trace with the collectives of its parameters and gradients."""
        cap, limit = self.bucket_cap_mb * MEBIBYTE, self.max_in_flight_gb * GIBIBYTE
        sizes, offload = BucketSizes(first=cap, following=cap), parse_offload_policy(self.offload_policy)
        schedule = Schedule(sizes, 1, self._dtype(), limit or None, pin_memory=offload is None or offload.pin_memory)
        return schedule(trace)

    def _dtype(self) -> torch.dtype | None:
        """Return the dtype in which gradients are reduced; None if they are reduced in their own dtype."""
        return parse_dtype(self.reduce_dtype) if self.reduce_dtype else None


def trained_parameters(trace: Trace) -> set[str]:
    """Return the names of the gathered parameters whose shards require gradients."""
    gathers = (bsym for bsym in trace.bound_symbols if is_call(bsym, "gather_parameter"))
    return {result_of(bsym).name for bsym in gathers if tensor_of(bsym).requires_grad}


def with_casts_of_shards(trace: Trace) -> Trace:
    """Return the trace that casts shards instead of gathered parameters, so that ranks exchange fewer bytes.

    A parameter is gathered in a narrower dtype only if its single reader is a cast to this dtype.
    """
    gathered = {result_of(bsym).name for bsym in trace.bound_symbols if is_call(bsym, "gather_parameter")}
    reads = Counter(proxy.name for proxy in chain(*(bsym.inputs for bsym in trace.bound_symbols), trace.outputs))
    casts = {
        proxy.name: bsym
        for bsym in trace.bound_symbols
        for proxy in bsym.inputs
        if proxy.name in gathered and reads[proxy.name] == 1 and is_narrowing_cast(bsym)
    }
    if not casts:
        return trace
    dropped = {id(cast) for cast in casts.values()}
    emitter, gather = Emitter(trace), OPERATORS.gather_parameter.default
    bsyms: list[BoundSymbol] = []
    for bsym in trace.bound_symbols:
        cast = casts.get(result_of(bsym).name) if is_call(bsym, "gather_parameter") else None
        if cast is not None:
            shard, rows, group_name, reshard, unsharded, _, device = (*bsym.args, None, None, None)[:7]
            args = shard, rows, group_name, reshard, unsharded, result_of(cast).dtype, device
            bsyms.append(emitter.call(gather, *args, at=bsym, output=cast.output))
        elif id(bsym) not in dropped:
            bsyms.append(bsym)
    return trace.having(bsyms, made_by=trace.made_by)


def is_narrowing_cast(bsym: BoundSymbol) -> bool:
    """Whether a bound symbol only copies its input into a floating-point dtype with fewer bytes."""
    operations = bsym.operations
    if len(operations) != 1 or operations[0].symbol.target is not torch.ops.aten._to_copy.default:
        return False
    (tensor,), result = operations[0].args, bsym.output
    return (
        isinstance(result, TensorProxy)
        and result.dtype.is_floating_point
        and result.dtype.itemsize < tensor.dtype.itemsize
        and (result.shape, result.stride, result.device) == (tensor.shape, tensor.stride, tensor.device)
    )


def require_unwritten(trace: Trace) -> None:
    """Raise `OperationFailed` for a program that writes to a gathered parameter, because the shard would not change."""
    written = names_written_to(trace)
    gathers = (bsym for bsym in trace.bound_symbols if is_call(bsym, "gather_parameter"))
    writing = next((bsym for bsym in gathers if written & {result_of(bsym).name, tensor_of(bsym).name}), None)
    if writing is not None:
        raise OperationFailed(
            "the program writes to a parameter that the recipe fsdp shards, and the shard would not change",
            fix="write to the parameter outside of the compiled module",
            where=writing.source,
        )


def parse_dtype(name: str) -> torch.dtype:
    """Return the floating-point dtype with a name; raise `BadOption` for any other name."""
    dtype = getattr(torch, name, None)
    if not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise BadOption(f"reduce_dtype is {name!r}, which is not a floating-point dtype", fix="use float32 or bfloat16")
    return dtype
