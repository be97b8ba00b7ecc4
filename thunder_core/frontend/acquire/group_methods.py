"""The methods of process groups that `torch.distributed` calls to communicate, as functions that a tracer records.

Each function starts the operation of a method, and returns a function that finishes the operation. The second function
is called when the program waits. If PyTorch has an equivalent functional collective, the function calls this collective
and copies its result to the program's tensor. The other functions call Thunder's operators. Tensors are passed as their
`data`, because autograd ignores these methods. The functions raise `ValueError` or `TypeError` for arguments that
cannot be traced.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
import torch.distributed as dist

from thunder_core.tracing.capture.torch_facts.modes import without_our_functions
from thunder_core.tracing.capture.torch_facts.strides import is_dense
from thunder_core.tracing.ir.sizes import expressions
from thunder_core.tracing.library.collectives import OPERATORS, REDUCE_OPS

FUNCTIONAL: Any = torch.ops._c10d_functional
EQUAL_ROWS = hasattr(dist, "gather_single")  # since PyTorch 2.14, `all_to_all_single` divides the rows of its output
FIRST_PRIME = 1000  # the first of the primes, by its number, that stand for sizes that vary
Tensors = Sequence[torch.Tensor]
Finish = Callable[[], Any]


@dataclass(frozen=True)
class Group:
    """The process group of a communication: its name and its number of ranks.

    If `is_python_group` is set, the methods of the process group are written in Python. The functional `all_reduce` and
    `broadcast` call these methods. The functional collectives that gather, scatter, or send from all ranks to all ranks
    do not.
    """

    name: str
    size: int
    is_python_group: bool = False


Method = Callable[..., Finish]
METHODS: dict[str, Method] = {}
WITHOUT_WORK = frozenset({"monitored_barrier"})  # methods that return no work: they wait themselves

# The names of parameters in PyTorch, which differ between the overloads of a method, and their possible names here.
INPUT_NAMES, OUTPUT_NAMES = ("tensor", "tensors"), ("output", "outputs")
KEYWORDS = {
    "tensor": INPUT_NAMES,
    **dict.fromkeys(("input", "inputs", "input_tensor", "input_tensors", "inputTensor"), INPUT_NAMES),
    **dict.fromkeys(("output_tensor", "output_tensors", "outputTensor"), OUTPUT_NAMES),
    "output": OUTPUT_NAMES,
    "dstRank": ("destination",),
    "srcRank": ("source",),
}


def method(*names: str) -> Callable[[Method], Method]:
    """Return a decorator that registers a function for these methods of process groups."""

    def register(function: Method) -> Method:
        METHODS.update(dict.fromkeys(names, function))
        return function

    return register


def parameters_of(function: Method, keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Rename the keyword arguments of a process group's method to the parameter names of its function."""
    names = inspect.signature(function).parameters
    return {
        next((name for name in (key, *KEYWORDS.get(key, ())) if name in names), key): value
        for key, value in keywords.items()
    }


def reduction(options: object, op: object = None) -> str:
    """Return the name of the reduction in the options or in `op`; the default is the sum."""
    reduce_op = (
        op if op is not None else dist.ReduceOp.SUM if options is None else getattr(options, "reduceOp", options)
    )
    for name, known_op in REDUCE_OPS.items():
        if reduce_op == known_op:
            return name
    raise ValueError(f"the reduction {reduce_op}")


def root_rank(options: object, root: int | None) -> int:
    """Return the root rank of a collective, from `root` or the options; the default is rank 0."""
    rank = root if root is not None else options
    return int(rank if isinstance(rank, int) else getattr(rank, "rootRank", 0))


def single_tensor(tensors: Any) -> torch.Tensor:
    """Return the only tensor of a list, or the tensor itself, without autograd.

    Raise `ValueError` for a longer list.
    """
    if isinstance(tensors, torch.Tensor):
        return tensors.data
    (tensor,) = tensors
    return tensor.data  # type: ignore[no-any-return]


def tensor_without_gaps(tensors: Any) -> torch.Tensor:
    """Return the only tensor of a list, or the tensor itself, without autograd.

    Raise `ValueError` if the tensor's elements have gaps in memory. The gloo backend ignores strides: it overwrites the
    gaps, and not the last elements. The NCCL backend raises an error.
    """
    tensor = single_tensor(tensors)
    if tensor.layout is torch.strided and has_gaps(tensor):
        raise ValueError("a tensor that has gaps in memory, which PyTorch's backends do not support")
    return tensor


def has_gaps(tensor: torch.Tensor) -> bool:
    """Whether the elements of a tensor have gaps in memory, without a decision about sizes that vary between calls.

    The sizes get different values, so a tensor without gaps has none for any sizes.
    """
    with without_our_functions():  # the program does not read these sizes
        shape, strides = expressions(tensor.shape), expressions(tensor.stride())
    symbols = sorted({symbol for size in (*shape, *strides) for symbol in size.free_symbols}, key=str)
    values = {symbol: sympy.prime(FIRST_PRIME + index) for index, symbol in enumerate(symbols)}
    lengths, steps = ([int(size.xreplace(values)) for size in sizes] for sizes in (shape, strides))
    return 0 not in lengths and not is_dense(lengths, steps)


def without_autograd(tensors: Any) -> list[torch.Tensor]:
    """Return the `data` of each tensor, which shares the memory, and which autograd does not record."""
    return [tensor.data for tensor in tensors]


def list_for_ranks(lists: Any) -> list[torch.Tensor]:
    """Return the tensors of all ranks, from a list, from a list of one list, or from None (no tensors)."""
    if not lists:
        return []
    return without_autograd(lists if isinstance(lists[0], torch.Tensor) else lists[0])


def require_matching(output: torch.Tensor, tensor: torch.Tensor, elements: int) -> None:
    """Raise `ValueError` if an output's dtype differs from the tensor's, or its number of elements from `elements`."""
    if output.dtype != tensor.dtype or output.numel() != elements:
        raise ValueError("tensors whose sizes or dtypes do not match")


def elements_per_rank(tensor: torch.Tensor, rows: Sequence[int], size: int) -> list[int]:
    """Return the number of elements of a contiguous tensor for each rank: `rows` per rank, or equal numbers of rows.

    Raises `ValueError` if the tensor does not have these rows.
    """
    length = tensor.shape[0] if tensor.dim() else 0
    rows = list(rows) or [length // size] * size
    if len(rows) != size or sum(rows) != length:
        raise ValueError(f"split sizes {rows} for {length} rows and {size} ranks")
    return [count * (tensor.numel() // length if length else 0) for count in rows]


def equal_elements_per_rank(tensor: torch.Tensor, size: int) -> list[int]:
    """Return equal numbers of elements for each rank. Raise `ValueError` if the elements cannot be divided equally."""
    if tensor.numel() % size:
        raise ValueError(f"{tensor.numel()} elements, which cannot be divided equally among {size} ranks")
    return [tensor.numel() // size] * size


def wait(result: torch.Tensor) -> torch.Tensor:
    """Wait for the result of a functional collective, and return it."""
    return FUNCTIONAL.wait_tensor(result)  # type: ignore[no-any-return]


def copy_results(outputs: Tensors, results: Tensors) -> Finish:
    """Return a function that waits for results, and copies each result to an output of the program."""

    def finish() -> None:
        for output, result in zip(outputs, [wait(result) for result in results], strict=True):
            output.copy_(result if result.shape == output.shape else result.view(output.shape))

    return finish


def wait_for(work: torch.Tensor, written: Tensors = (), read: Tensors = ()) -> Finish:
    """Return a function that waits for the work of a Thunder operator, which writes and reads these tensors."""
    return lambda: OPERATORS.wait(work, list(written), list(read))


# ---- functional collectives and copies, or Thunder's operators if no functional collective is equivalent ---------


@method("allreduce")
def all_reduce(group: Group, tensors: object, opts: object = None, timeout: object = None, op: object = None) -> Finish:
    """Reduce a tensor of each rank, on all ranks."""
    tensor = tensor_without_gaps(tensors)
    return copy_results([tensor], [FUNCTIONAL.all_reduce(tensor, reduction(opts, op), group.name)])


@method("allreduce_coalesced")
def all_reduce_coalesced(group: Group, tensors: object, opts: object = None) -> Finish:
    """Reduce several tensors of each rank together."""
    data = without_autograd(tensors)
    return copy_results(data, FUNCTIONAL.all_reduce_coalesced(data, reduction(opts), group.name))


@method("broadcast")
def broadcast(group: Group, tensors: Any, opts: Any = None, timeout: Any = None, root: Any = None) -> Finish:
    """Send the tensor of one rank to all ranks."""
    tensor = tensor_without_gaps(tensors)
    return copy_results([tensor], [FUNCTIONAL.broadcast(tensor, root_rank(opts, root), group.name)])


@method("_allgather_base", "all_gather_single")
def all_gather_into_tensor(group: Group, output: torch.Tensor, tensor: torch.Tensor, opts: object = None) -> Finish:
    """Gather a tensor of each rank into one tensor."""
    require_matching(output, tensor, tensor.numel() * group.size)
    if group.is_python_group:
        written, read = output.data, tensor.data
        return wait_for(OPERATORS.all_gather_into_tensor(written, read, group.name), [written], [read])
    return copy_results(
        [output.data], [FUNCTIONAL.all_gather_into_tensor(tensor.data.contiguous(), group.size, group.name)]
    )


@method("allgather_into_tensor_coalesced", "all_gather_single_coalesced")
def all_gather_into_tensor_coalesced(group: Group, outputs: Tensors, tensors: Tensors, opts: object = None) -> Finish:
    """Gather several tensors of each rank together."""
    for output, tensor in zip(outputs, tensors, strict=True):
        require_matching(output, tensor, tensor.numel() * group.size)
    gathered = FUNCTIONAL.all_gather_into_tensor_coalesced(without_autograd(tensors), group.size, group.name)
    return copy_results(without_autograd(outputs), gathered)


@method("allgather")
def all_gather(group: Group, outputs: object, tensors: object, opts: object = None, timeout: object = None) -> Finish:
    """Gather a tensor of each rank into a list. The process group handles tensors of different shapes."""
    tensor, data = single_tensor(tensors), list_for_ranks(outputs)
    if (
        group.is_python_group
        or len(data) != group.size
        or any((item.shape, item.dtype) != (tensor.shape, tensor.dtype) for item in data)
    ):
        return wait_for(OPERATORS.all_gather(data, tensor, group.name), data, [tensor])
    gathered = FUNCTIONAL.all_gather_into_tensor(tensor.contiguous().view(-1), group.size, group.name)

    def finish() -> None:
        parts = wait(gathered).view(group.size, *tensor.shape)
        for output, part in zip(data, parts.unbind(), strict=True):
            output.copy_(part)

    return finish


@method("_reduce_scatter_base", "reduce_scatter_single")
def reduce_scatter_tensor(group: Group, output: torch.Tensor, tensor: torch.Tensor, opts: object = None) -> Finish:
    """Reduce a tensor of each rank, and send each rank its part of the result."""
    require_matching(output, tensor, tensor.numel() // group.size)
    if group.is_python_group:
        written, read = output.data, tensor.data
        return wait_for(OPERATORS.reduce_scatter_tensor(written, read, reduction(opts), group.name), [written], [read])
    flat = tensor.data.contiguous().view(-1)
    return copy_results(
        [output.data], [FUNCTIONAL.reduce_scatter_tensor(flat, reduction(opts), group.size, group.name)]
    )


@method("reduce_scatter_tensor_coalesced", "reduce_scatter_single_coalesced")
def reduce_scatter_tensor_coalesced(group: Group, outputs: Tensors, tensors: Tensors, opts: object = None) -> Finish:
    """Reduce several tensors of each rank together, and send each rank its parts."""
    for output, tensor in zip(outputs, tensors, strict=True):
        require_matching(output, tensor, tensor.numel() // group.size)
    data, op = without_autograd(tensors), reduction(opts)
    results = FUNCTIONAL.reduce_scatter_tensor_coalesced(data, op, group.size, group.name)
    return copy_results(without_autograd(outputs), results)


@method("alltoall_base", "all_to_all_single")
def all_to_all_single(
    group: Group,
    output: torch.Tensor,
    tensor: torch.Tensor,
    output_split_sizes: Sequence[int] = (),
    input_split_sizes: Sequence[int] = (),
    opts: object = None,
    timeout: object = None,
) -> Finish:
    """Send a part of a tensor to each rank, and receive a part from each rank.

    Eager PyTorch sends memory and ignores shapes, except that ranks share the rows of the output since PyTorch 2.14.
    Split sizes count rows of the input or of the output.
    """
    rows = list(output_split_sizes), list(input_split_sizes)
    require_matching(output, tensor, output.numel() if any(rows) else tensor.numel())
    if not (output.is_contiguous() and tensor.is_contiguous()):
        raise ValueError("tensors that are not contiguous")
    if EQUAL_ROWS and not output_split_sizes and output.dim() and output.shape[0] % group.size:
        raise ValueError(f"{output.shape[0]} rows of the output, which {group.size} ranks cannot share")
    if group.is_python_group:
        written, read = output.data, tensor.data
        return wait_for(OPERATORS.all_to_all_single(written, read, *rows, group.name), [written], [read])
    if any(rows):
        received, sent = (elements_per_rank(*pair, group.size) for pair in zip((output, tensor), rows, strict=True))
    else:
        received = sent = equal_elements_per_rank(tensor, group.size)
    return copy_results([output.data], [FUNCTIONAL.all_to_all_single(tensor.data.view(-1), received, sent, group.name)])


# ---- Thunder's operators ------------------------------------------------------------------------------------------


@method("reduce")
def reduce(
    group: Group,
    tensors: Any,
    opts: Any = None,
    op: Any = None,
    timeout: Any = None,
    root: Any = None,
) -> Finish:
    """Reduce a tensor of each rank, on one rank."""
    tensor = tensor_without_gaps(tensors)
    op_name = reduction(None if isinstance(opts, int) else opts, op)
    return wait_for(OPERATORS.reduce(tensor, op_name, root_rank(opts, root), group.name), [tensor])


@method("gather")
def gather(group: Group, outputs: Any, tensors: Any, opts: Any = None, timeout: Any = None, root: Any = None) -> Finish:
    """Gather a tensor of each rank, on one rank."""
    tensor, data = single_tensor(tensors), list_for_ranks(outputs)
    return wait_for(OPERATORS.gather(data, tensor, root_rank(opts, root), group.name), data, [tensor])


@method("scatter")
def scatter(
    group: Group, outputs: Any, tensors: Any, opts: Any = None, timeout: Any = None, root: Any = None
) -> Finish:
    """Send a tensor of one rank to each rank."""
    output, data = tensor_without_gaps(outputs), list_for_ranks(tensors)
    return wait_for(OPERATORS.scatter(output, data, root_rank(opts, root), group.name), [output], data)


@method("reduce_scatter")
def reduce_scatter(
    group: Group, outputs: object, tensors: object, opts: object = None, timeout: object = None, op: object = None
) -> Finish:
    """Reduce a list of tensors of each rank, and send each rank its result."""
    output, data = tensor_without_gaps(outputs), list_for_ranks(tensors)
    return wait_for(OPERATORS.reduce_scatter(output, data, reduction(opts, op), group.name), [output], data)


@method("alltoall")
def all_to_all(group: Group, outputs: Tensors, tensors: Tensors, opts: object = None) -> Finish:
    """Send a tensor to each rank, and receive a tensor from each rank."""
    written, read = without_autograd(outputs), without_autograd(tensors)
    return wait_for(OPERATORS.all_to_all(written, read, group.name), written, read)


@method("send")
def send(group: Group, tensors: object, destination: int, tag: int) -> Finish:
    """Send a tensor to a rank."""
    tensor = single_tensor(tensors)
    return wait_for(OPERATORS.send(tensor, int(destination), int(tag), group.name), read=[tensor])


@method("recv")
def recv(group: Group, tensors: object, source: int, tag: int) -> Finish:
    """Receive a tensor from a rank."""
    tensor = single_tensor(tensors)
    return wait_for(OPERATORS.recv(tensor, int(source), int(tag), group.name), [tensor])


@method("barrier")
def barrier(group: Group, opts: object = None, timeout: object = None) -> Finish:
    """Wait for all ranks."""
    return wait_for(OPERATORS.barrier(group.name, getattr(opts, "device", None)))


@method("monitored_barrier")
def monitored_barrier(group: Group, timeout: Any = None, wait_all_ranks: bool = False) -> Finish:
    """Wait for all ranks, and raise an error that names the missing ranks."""
    if timeout is None:
        raise ValueError("no timeout")
    return wait_for(OPERATORS.monitored_barrier(group.name, timeout.total_seconds(), wait_all_ranks, None))
