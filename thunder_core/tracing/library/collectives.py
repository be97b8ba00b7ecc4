"""Define operators for collectives that have no functional form in PyTorch, so that traces can call them.

Each operator calls an asynchronous method of the process group with a name, and writes to the same tensors as the
method. It returns a 0-d integer tensor: the number of the pending `torch.distributed.Work`, for which `wait` waits.
`monitored_barrier` is synchronous: there is no work for its number, and `wait` returns at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from thunder_core.foundation.errors import OperationFailed

NAMESPACE = "thunder_c10d"
_library: Any = torch.library.Library(NAMESPACE, "DEF")  # type: ignore[no-untyped-call]
_pending_works: dict[int, Any] = {}  # by the number that the operator has returned; None for a synchronous method
_work_numbers = itertools.count()
DISPATCH_KEYS = ("CPU", "CUDA")

REDUCTIONS = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor")
REDUCE_OPS: dict[str, Any] = {}  # empty in a build of PyTorch without distributed
if dist.is_available():
    REDUCE_OPS = {name: getattr(dist.ReduceOp, name.upper()) for name in REDUCTIONS}


def registered_group(name: str) -> Any:
    """Return the process group with a name, or None if this process has none."""
    try:
        return torch._C._distributed_c10d._resolve_process_group(name)  # type: ignore[arg-type]
    except RuntimeError:
        return None


def group_of(name: str) -> Any:
    """Return the process group with a name; raise `OperationFailed` if this process has none."""
    group = registered_group(name)
    if group is None:
        raise OperationFailed(
            f"the compiled program communicates in the process group {name!r}, which this process does not have",
            fix="create the group again as it was when the program was compiled, or compile the program again",
        )
    return group


def group_facts(name: str) -> tuple[int, int] | None:
    """Return this process's rank in a group, and the size of the group; None if no group has this name."""
    group = registered_group(name)
    return None if group is None else (group.rank(), group.size())


def operator(signature: str, keys: Sequence[str] = DISPATCH_KEYS) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Define an operator by the decorated function, which starts a collective and returns its work.

    On the meta device, the operator does not communicate, and returns a meta tensor instead of the number.
    """

    def define(start: Callable[..., Any]) -> Callable[..., Any]:
        name = start.__name__
        _library.define(f"{name}{signature} -> Tensor")

        def run(*args: Any) -> torch.Tensor:
            number = next(_work_numbers)
            _pending_works[number] = start(*args)
            return torch.tensor(number)

        for key in keys:
            _library.impl(name, run, key)
        _library.impl(name, lambda *args: torch.empty((), dtype=torch.int64, device="meta"), "Meta")
        return start

    return define


def options(kind: str, **values: Any) -> Any:
    """Return an options object of class `kind` for an asynchronous method of a process group."""
    options_object = getattr(dist.distributed_c10d, kind)()
    for name, value in {"asyncOp": True, **values}.items():
        setattr(options_object, name, value)
    return options_object


@operator("(Tensor(a!) tensor, str reduce_op, int root, str group_name)")
def reduce(tensor: torch.Tensor, reduce_op: str, root: int, group_name: str) -> Any:
    """Start to reduce the tensors of all ranks into the tensor of the rank `root`."""
    options_of_call = options("ReduceOptions", reduceOp=REDUCE_OPS[reduce_op], rootRank=root)
    return group_of(group_name).reduce([tensor], options_of_call)


@operator("(Tensor(a!)[] outputs, Tensor tensor, str group_name)")
def all_gather(outputs: list[torch.Tensor], tensor: torch.Tensor, group_name: str) -> Any:
    """Start to gather the tensors of all ranks on all ranks."""
    return group_of(group_name).allgather([outputs], [tensor], options("AllgatherOptions"))


@operator("(Tensor(a!) output, Tensor tensor, str group_name)")
def all_gather_into_tensor(output: torch.Tensor, tensor: torch.Tensor, group_name: str) -> Any:
    """Start to gather the tensors of all ranks in one tensor."""
    return group_of(group_name)._allgather_base(output, tensor, options("AllgatherOptions"))


@operator("(Tensor(a!) output, Tensor tensor, str reduce_op, str group_name)")
def reduce_scatter_tensor(output: torch.Tensor, tensor: torch.Tensor, reduce_op: str, group_name: str) -> Any:
    """Start to reduce the tensors of all ranks, and to scatter the result: each rank receives one part of it."""
    options_of_call = options("ReduceScatterOptions", reduceOp=REDUCE_OPS[reduce_op])
    return group_of(group_name)._reduce_scatter_base(output, tensor, options_of_call)


@operator("(Tensor(a!) rows_by_rank, str reduce_op, str group_name)")
def reduce_scatter_tensor_(rows_by_rank: torch.Tensor, reduce_op: str, group_name: str) -> Any:
    """Start a reduce-scatter in place in a gloo group: row `i` of `rows_by_rank` is the result of rank `i`.

    After the wait, a rank reads only its own row. PyTorch's reduce-scatter for gloo copies the tensor, reduces all rows
    of the copy on all ranks, and copies one row. This operator avoids both copies by an all-reduce in place.
    """
    options_of_call = options("AllreduceOptions", reduceOp=REDUCE_OPS[reduce_op])
    return group_of(group_name).allreduce([rows_by_rank], options_of_call)


@operator("(Tensor(a!) output, Tensor tensor, SymInt[] output_sizes, SymInt[] input_sizes, str group_name)")
def all_to_all_single(
    output: torch.Tensor, tensor: torch.Tensor, output_sizes: list[int], input_sizes: list[int], group_name: str
) -> Any:
    """Start to send a part of a tensor to each rank, and to receive a part from each rank."""
    options_of_call = options("AllToAllOptions")
    return group_of(group_name).alltoall_base(output, tensor, output_sizes, input_sizes, options_of_call)


@operator("(Tensor(a!)[] outputs, Tensor tensor, int root, str group_name)")
def gather(outputs: list[torch.Tensor], tensor: torch.Tensor, root: int, group_name: str) -> Any:
    """Start to gather the tensors of all ranks on the rank `root`; the other ranks have no outputs."""
    options_of_call = options("GatherOptions", rootRank=root)
    return group_of(group_name).gather([outputs] if outputs else [], [tensor], options_of_call)


@operator("(Tensor(a!) output, Tensor[] inputs, int root, str group_name)")
def scatter(output: torch.Tensor, inputs: list[torch.Tensor], root: int, group_name: str) -> Any:
    """Start to send one tensor from the rank `root` to each rank; the other ranks have no inputs."""
    options_of_call = options("ScatterOptions", rootRank=root)
    return group_of(group_name).scatter([output], [inputs] if inputs else [], options_of_call)


@operator("(Tensor(a!) output, Tensor[] inputs, str reduce_op, str group_name)")
def reduce_scatter(output: torch.Tensor, inputs: list[torch.Tensor], reduce_op: str, group_name: str) -> Any:
    """Start to reduce the `i`-th inputs of all ranks, for each `i`, into the output of rank `i`."""
    options_of_call = options("ReduceScatterOptions", reduceOp=REDUCE_OPS[reduce_op])
    return group_of(group_name).reduce_scatter([output], [inputs], options_of_call)


@operator("(Tensor(a!)[] outputs, Tensor[] inputs, str group_name)")
def all_to_all(outputs: list[torch.Tensor], inputs: list[torch.Tensor], group_name: str) -> Any:
    """Start to send one tensor to each rank, and to receive one from each rank."""
    return group_of(group_name).alltoall(outputs, inputs, options("AllToAllOptions"))


@operator("(Tensor tensor, int destination, int tag, str group_name)")
def send(tensor: torch.Tensor, destination: int, tag: int, group_name: str) -> Any:
    """Start to send a tensor to a rank of the group."""
    return group_of(group_name).send([tensor], destination, tag)


@operator("(Tensor(a!) tensor, int source, int tag, str group_name)")
def recv(tensor: torch.Tensor, source: int, tag: int, group_name: str) -> Any:
    """Start to receive a tensor from a rank of the group."""
    return group_of(group_name).recv([tensor], source, tag)


@operator("(str group_name, Device? device)", keys=("CompositeExplicitAutograd",))
def barrier(group_name: str, device: torch.device | None) -> Any:
    """Start a barrier: its work is complete when all ranks have started the barrier."""
    return group_of(group_name).barrier(options("BarrierOptions", **({} if device is None else {"device": device})))


@operator("(str group_name, float seconds, bool wait_all_ranks, Device? device)", keys=("CompositeExplicitAutograd",))
def monitored_barrier(group_name: str, seconds: float, wait_all_ranks: bool, device: None) -> None:
    """Wait until all ranks have called this function; after `seconds`, raise an error that names the missing ranks."""
    group_of(group_name).monitored_barrier(timedelta(seconds=seconds), wait_all_ranks=wait_all_ranks)


def wait(work: torch.Tensor, written: list[torch.Tensor], read: list[torch.Tensor]) -> None:
    """Wait for the work with the number in the tensor `work`.

    Before the wait returns, the collective may read the tensors `read` and write to the tensors `written`.
    """
    pending_work = _pending_works.pop(int(work), None)
    if pending_work is not None:
        pending_work.wait()


_library.define("wait(Tensor work, Tensor(a!)[] written, Tensor[] read) -> ()")
_library.impl("wait", wait, "CompositeExplicitAutograd")
_library.impl("wait", lambda *args: None, "Meta")
OPERATORS: Any = getattr(torch.ops, NAMESPACE)
