"""Programs that call the collectives of `torch.distributed`, each with its arguments for one call."""

# mypy: disable-error-code="no-untyped-call,no-untyped-def"

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

from thunder_core.frontend.acquire.group_methods import EQUAL_ROWS

Arguments = Callable[[int], tuple[Any, ...]]
CASES: dict[str, tuple[Callable[..., Any], Arguments]] = {}


def numbers(call: int, *shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Numbers that differ between calls and ranks."""
    count = torch.Size(shape).numel()
    return (torch.arange(count, dtype=dtype) + 10 * call + 100 * dist.get_rank() + 1).reshape(shape)


def one(call: int) -> tuple[Any, ...]:
    """One tensor."""
    return (numbers(call, 4, 3),)


def two(call: int) -> tuple[Any, ...]:
    """Two tensors of one shape."""
    return numbers(call, 4, 3), numbers(call + 5, 4, 3)


def case(arguments: Arguments) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a program with its arguments."""

    def register(program: Callable[..., Any]) -> Callable[..., Any]:
        CASES[program.__name__] = program, arguments
        return program

    return register


# ---- all_reduce ---------------------------------------------------------------------------------------------------


@case(one)
def all_reduce(x):
    dist.all_reduce(x)
    return x + 1


@case(two)
def all_reduce_with_each_reduction(x, y):
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.AVG):
        dist.all_reduce(y, op=op)
    x = (x * y).to(torch.int64)
    for op in (dist.ReduceOp.BAND, dist.ReduceOp.BOR):
        dist.all_reduce(x, op)
    return x, y


@case(lambda call: (numbers(call, 3), [dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.SUM][call]))
def all_reduce_with_reduction_as_argument(x, op):
    dist.all_reduce(x, op)
    return x * 2


@case(one)
def all_reduce_async(x):
    work = dist.all_reduce(x, async_op=True)
    y = torch.ones(3) * 2
    work.wait()
    assert work.is_completed()
    return x + y


@case(two)
def two_works_in_flight(x, y):
    works = [dist.all_reduce(tensor, async_op=True) for tensor in (x, y)]
    for work in reversed(works):
        work.wait()
    return x - y


@case(one)
def work_without_wait(x):
    y = x * 2
    dist.all_reduce(y, async_op=True)
    return y


@case(one)
def all_reduce_of_view(x):
    dist.all_reduce(x[1])
    dist.all_reduce(x.view(-1)[:2])
    return x * 2


@case(one)
def all_reduce_of_result_that_one_rank_reads(x):
    y = x.clone()
    dist.all_reduce(y)
    return y if dist.get_rank() == 0 else x


@case(one)
def all_reduce_of_result_that_nobody_reads(x):
    y = x.clone()
    dist.all_reduce(y)
    return x * 2


@case(lambda call: (numbers(call, 2, dtype=torch.float32).to(torch.complex64),))
def all_reduce_of_complex_numbers(x):
    dist.all_reduce(x)
    return x * 1j


@case(lambda call: (numbers(call, 5, dtype=torch.bfloat16), numbers(call, 5, dtype=torch.int32)))
def all_reduce_of_other_dtypes(x, y):
    dist.all_reduce(x)
    dist.all_reduce(y)
    return x * 2, y + x


@case(lambda call: ([numbers(call, 2), numbers(call, 3)],))
def all_reduce_coalesced(tensors):
    dist.all_reduce_coalesced(tensors)
    return [tensor * 2 for tensor in tensors]


@case(two)
def coalescing_manager(x, y):
    with dist._coalescing_manager():
        dist.all_reduce(x)
        dist.all_reduce(y)
    return x * y


@case(two)
def equal_collectives_are_all_made(x, y):
    first, second = x.clone(), x.clone()
    dist.all_reduce(first)
    dist.all_reduce(second)
    dist.barrier()
    dist.barrier()
    return first + second + y


# ---- gathering and scattering --------------------------------------------------------------------------------------


@case(one)
def all_gather(x):
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x)
    return torch.cat(parts) * 2


@case(one)
def all_gather_async_of_transposed(x):
    parts = [torch.empty(3, 4, dtype=x.dtype) for _ in range(2)]
    work = dist.all_gather(parts, x.t().contiguous(), async_op=True)
    work.wait()
    return parts


@case(one)
def all_gather_of_number(x):
    parts = [torch.empty((), dtype=x.dtype) for _ in range(2)]
    dist.all_gather(parts, x.sum())
    return torch.stack(parts)


@case(one)
def all_gather_into_tensor(x):
    joined = x.new_zeros(8, 3)
    dist.all_gather_into_tensor(joined, x)
    other = x.new_zeros(24)
    dist.all_gather_into_tensor(other, x.view(-1), async_op=True).wait()
    return joined + 1, other


@case(one)
def reduce_scatter_tensor(x):
    part = x.new_zeros(2, 3)
    dist.reduce_scatter_tensor(part, x)
    other = x.new_zeros(6)
    dist.reduce_scatter_tensor(other, x.view(-1), op=dist.ReduceOp.MAX, async_op=True).wait()
    return part * 2, other


@case(two)
def reduce_scatter(x, y):
    part = torch.empty_like(x)
    dist.reduce_scatter(part, [x, y])
    return part + x


@case(one)
def reduce_scatter_uneven(x):
    parts = [x[:1].contiguous(), x[1:].contiguous()]
    part = torch.empty_like(parts[dist.get_rank()])
    dist.reduce_scatter(part, parts)
    return part * 2


@case(one)
def collectives_of_permuted_dimensions(x):
    y = x.t().contiguous().t()
    dist.all_reduce(x.t())
    dist.broadcast(y, 1)
    return x, y


@case(one)
def all_to_all_single(x):
    received = torch.empty_like(x)
    dist.all_to_all_single(received, x)
    return received * 2


@case(one)
def all_to_all_single_uneven(x):
    sent = [1, 3]
    taken = [sent[dist.get_rank()]] * 2
    received = x.new_zeros(sum(taken), 3)
    dist.all_to_all_single(received, x, taken, sent)
    return received


@case(one)
def all_to_all_single_to_other_shapes(x):
    shapes = [(2, 6), (12,), (3, 4), (6, 2), (2, 2, 3)]
    outputs = [x.new_zeros(*shape) for shape in shapes if shape[0] % 2 == 0 or not EQUAL_ROWS]
    for output in outputs:
        dist.all_to_all_single(output, x)
    odd = x.new_zeros(2, 3)
    dist.all_to_all_single(odd, x[:2].reshape(6))
    dist.all_to_all_single(outputs[0], x, async_op=True).wait()
    return outputs, odd


@case(one)
def all_to_all_single_with_rows_of_other_shapes(x):
    sent = [1, 3]
    taken = [sent[dist.get_rank()]] * 2
    flat = x.new_zeros(3 * sum(taken))
    dist.all_to_all_single(flat, x, [3 * count for count in taken], sent)
    rows = x.new_zeros(4, 3)
    dist.all_to_all_single(rows, x.view(12), None, [6, 6])
    dist.all_to_all_single(rows, rows + x, [2, 2], None)
    nothing = x.new_zeros(0, 3)
    dist.all_to_all_single(nothing, x[:0])
    return flat, rows, nothing


@case(two)
def all_to_all(x, y):
    received = [torch.empty_like(x), torch.empty_like(y)]
    dist.all_to_all(received, [x, y])
    return received


@case(one)
def broadcast(x):
    dist.broadcast(x, 1)
    y = x + dist.get_rank()
    dist.broadcast(y, src=0, async_op=True).wait()
    return y


@case(one)
def reduce(x):
    dist.reduce(x, 0)
    dist.reduce(x, dst=1, op=dist.ReduceOp.MAX, async_op=True).wait()
    return x if dist.get_rank() == 1 else x.shape[0]


@case(one)
def gather(x):
    root = dist.get_rank() == 0
    parts = [torch.empty_like(x) for _ in range(2)] if root else None
    dist.gather(x, parts, dst=0)
    return parts


@case(two)
def scatter(x, y):
    part = torch.empty_like(x)
    dist.scatter(part, [x, y] if dist.get_rank() == 1 else None, src=1)
    return part * 2


# ---- from one rank to another --------------------------------------------------------------------------------------


@case(one)
def send_and_receive(x):
    if dist.get_rank() == 0:
        dist.send(x * 2, 1)
        dist.recv(x, 1)
    else:
        source = dist.recv(x, 0)
        dist.send(x + source, dst=0)
    return x + 1


@case(one)
def size_and_tensor(x):
    """The size is a constant of the program, which must be sent once."""
    size = torch.tensor([x.shape[0]])
    if dist.get_rank() == 0:
        dist.send(size, 1)
        dist.send(x, 1)
    else:
        dist.recv(size, 0)
        dist.recv(x, 0)
    return x * 2, size


@case(one)
def reductions_of_constants(x):
    rank = dist.get_rank()
    count, number = torch.tensor([5.0 + rank]), torch.tensor([rank])
    dist.all_reduce(count, async_op=True).wait()
    gathered = [torch.zeros(1) for _ in range(2)]
    dist.all_gather(gathered, torch.tensor([rank * 1.0]))
    dist.broadcast(number, 1)
    return x * count, gathered, number, count


@case(one)
def reduction_of_a_constant_on_one_rank(x):
    count = torch.tensor([5.0]) if dist.get_rank() else x.flatten()[:1].float() * 2
    dist.all_reduce(count)
    total = x.sum().reshape(1)
    dist.all_reduce(total)
    return count, total


@case(one)
def send_and_receive_async(x):
    received = torch.empty_like(x)
    other = 1 - dist.get_rank()
    works = [dist.isend(x, other), dist.irecv(received, other)]
    for work in works:
        work.wait()
    return received * 2


@case(one)
def send_and_receive_in_batch(x):
    received = torch.empty_like(x)
    other = 1 - dist.get_rank()
    operations = [dist.P2POp(dist.isend, x, other), dist.P2POp(dist.irecv, received, other)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return received - x


@case(one)
def receive_twice(x):
    received = torch.empty_like(x)
    other = 1 - dist.get_rank()
    for _ in range(2):
        works = [dist.isend(x, other), dist.irecv(received, other)]
        [work.wait() for work in works]
        x = received * 2
    return x


@case(one)
def barrier(x):
    dist.barrier()
    dist.barrier(async_op=True).wait()
    dist.monitored_barrier()
    return x * 2


# ---- groups --------------------------------------------------------------------------------------------------------


@case(one)
def rank_and_size(x):
    if dist.get_rank() == 0:
        x = x * 2
    group = dist.group.WORLD
    return x * dist.get_world_size(), group.rank(), group.size(), group.group_name, dist.get_backend()


@case(one)
def method_of_group(x):
    dist.group.WORLD.allreduce([x]).wait()
    dist.group.WORLD.broadcast(x, 1).wait()
    return x * 2


@case(one)
def methods_without_options(x):
    group, part, joined = dist.group.WORLD, torch.zeros_like(x), torch.zeros_like(x)
    group.broadcast([x]).wait()
    x = x * (2 + dist.get_rank())
    group.reduce([x]).wait()
    group.scatter([part], [[x, x * 2]] if dist.get_rank() == 0 else []).wait()
    parts = [torch.zeros_like(x) for _ in range(2)]
    group.gather([parts] if dist.get_rank() == 0 else [], [x]).wait()
    group.alltoall_base(joined, x, [], []).wait()
    group.barrier().wait()
    return x, part, parts, joined


@case(one)
def methods_with_keywords_of_pytorch(x):
    group, options = dist.group.WORLD, dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.MAX
    group.allreduce([x], opts=options).wait()
    group.allreduce(tensor=x, op=dist.ReduceOp.SUM).wait()
    rooted = dist.BroadcastOptions()
    rooted.rootRank = 1
    x = x + dist.get_rank()
    group.broadcast(tensors=[x], opts=rooted).wait()
    group.broadcast(tensor=x, root=0).wait()
    joined, part = x.new_zeros(8, 3), x.new_zeros(2, 3)
    group._allgather_base(output=joined, input=x).wait()
    group._reduce_scatter_base(outputTensor=part, inputTensor=x).wait()
    received = torch.zeros_like(x)
    group.alltoall_base(output=received, input=x, output_split_sizes=[], input_split_sizes=[]).wait()
    parts = [torch.zeros_like(x) for _ in range(2)]
    group.allgather(output_tensors=parts, input_tensor=x).wait()
    group.reduce(x, root=1, op=dist.ReduceOp.MAX).wait()
    return x if dist.get_rank() else 0, joined, part, received, parts


# ---- functional collectives ----------------------------------------------------------------------------------------


@case(one)
def functional_collectives(x):
    group = dist.group.WORLD
    reduced = funcol.all_reduce(x, "sum", group)
    gathered = funcol.all_gather_tensor(reduced, 0, group)
    scattered = funcol.reduce_scatter_tensor(gathered, "max", 0, group)
    sent = funcol.broadcast(scattered, 1, group)
    received = funcol.all_to_all_single(sent + dist.get_rank(), None, None, group)
    return reduced, gathered, scattered, funcol.permute_tensor(received.view(-1), [1, 0], group)


@case(two)
def functional_collectives_coalesced(x, y):
    group = dist.group.WORLD
    reduced = funcol.all_reduce_coalesced([x, y], "sum", group)
    gathered = funcol.all_gather_into_tensor_coalesced(reduced, group)
    return funcol.reduce_scatter_tensor_coalesced(gathered, "sum", [0, 0], group)


@case(one)
def functional_collective_in_place(x):
    y = x * 2
    torch.ops._c10d_functional.all_reduce_(y, "sum", dist.group.WORLD.group_name)
    torch.ops._c10d_functional.wait_tensor(y)
    return y + 1


@case(one)
def functional_collective_that_one_rank_reads(x):
    y = funcol.all_reduce(x, "sum", dist.group.WORLD)
    return y if dist.get_rank() == 0 else x


@case(one)
def functional_collectives_that_are_equal(x):
    first = funcol.all_reduce(x, "sum", dist.group.WORLD)
    second = funcol.all_reduce(x, "sum", dist.group.WORLD)
    return first + second


@case(two)
def autograd_functions(x, y):
    reduced = dist.nn.functional.all_reduce(x)
    gathered = dist.nn.functional.all_gather(y)
    received = dist.nn.functional.all_to_all_single(torch.empty_like(x), x)
    sent = dist.nn.functional.broadcast(x, 0)
    return reduced, gathered, received, sent


@case(lambda call: (numbers(call, 2) * (1 if call == 1 else -1),))
def branch_by_value_behind_collective(x):
    y = x * 2
    dist.all_reduce(y)
    return y * 2 if x.sum() > 10 else y


class Held:
    """An object with a tensor."""

    def __init__(self, value: torch.Tensor) -> None:
        self.value = value


@case(lambda call: (Held(numbers(call, 2)),))
def tensor_of_object_is_reduced(held):
    dist.all_reduce(held.value)
    return held.value * 2
