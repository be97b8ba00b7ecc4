"""Checks of programs that are given process groups, device meshes and works, run on each rank."""

# mypy: disable-error-code="no-untyped-call,no-untyped-def"

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.distributed.device_mesh import init_device_mesh

import thunder_core as thunder
from tests.distributed.collectives.collectives import numbers
from tests.distributed.comparison import assert_equal
from thunder_core.foundation.errors import OperationFailed, RecompileWarning


def same_at_each_call(program: Any, *calls: tuple[Any, ...]) -> Any:
    """Assert that two calls of a program with each of these arguments equal eager; return the compiled function."""
    compiled = thunder.jit(program)
    for arguments in (*calls, *calls):
        expected = program(*[copy_of(one) for one in arguments])
        assert_equal(compiled(*[copy_of(one) for one in arguments]), expected)
    return compiled


def copy_of(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def alone_and_together() -> tuple[Any, Any, Any]:
    """The group of this rank alone, and two groups of both."""
    alone = [dist.new_group([rank]) for rank in range(2)][dist.get_rank()]
    return alone, dist.new_group([0, 1]), dist.new_group([0, 1])


def group_as_argument() -> None:
    alone, both, _ = alone_and_together()

    def program(x, group):
        dist.all_reduce(x, group=group)
        return x * dist.get_world_size(group)

    x = numbers(0, 3)
    compiled = same_at_each_call(program, (x, alone), (x, both), (x, None), (x, dist.group.WORLD))
    assert thunder.cache_misses(compiled) == 4
    same_at_each_call(lambda x, group: funcol.all_reduce(x, "sum", group), (x, both), (x, alone))


def group_in_closure() -> None:
    alone, both, _ = alone_and_together()
    group = both

    def program(x):
        parts = [torch.empty_like(x) for _ in range(group.size())]
        dist.all_gather(parts, x, group=group)
        return parts, group.rank()

    compiled = thunder.jit(program)
    for chosen in (alone, both, alone):
        group = chosen
        assert_equal(compiled(numbers(0, 3)), program(numbers(0, 3)))


class Parallel(torch.nn.Module):
    """A layer that holds its process group."""

    def __init__(self, group: Any) -> None:
        super().__init__()
        self.group = group
        self.linear = torch.nn.Linear(3, 3, bias=False, dtype=torch.float64)
        torch.nn.init.eye_(self.linear.weight)

    def forward(self, x):
        return funcol.all_reduce(self.linear(x), "sum", self.group) + self.group.size()


def group_as_attribute() -> None:
    alone, both, _ = alone_and_together()
    module = Parallel(both)
    compiled = thunder.jit(module)
    for group in (both, alone, both):
        module.group = group
        assert_equal(compiled(numbers(0, 2, 3)), module(numbers(0, 2, 3)))


def source_in_group() -> None:
    """Ranks of `send`, `broadcast` and `scatter` are those of the world, or of a group with `group_src`."""
    _, first, second = alone_and_together()

    def program(x, group):
        dist.broadcast(x, src=1, group=group)
        y = x + dist.get_rank(group)
        dist.broadcast(y, group_src=0, group=group)
        dist.reduce(y, group_dst=1, group=group)
        return y if dist.get_rank(group) == 1 else x

    same_at_each_call(program, (numbers(0, 3), first), (numbers(1, 3), second))


def group_made_anew() -> None:
    """A group that is destroyed and made again is another group, which the program is compiled for again."""

    def program(x, group):
        dist.all_reduce(x, group=group)
        return x * 2

    compiled = thunder.jit(program)
    for _ in range(3):
        group = dist.new_group([0, 1])
        assert_equal(compiled(numbers(0, 3), group), program(numbers(0, 3), group))
        dist.destroy_process_group(group)


def rank_that_is_not_in_the_group() -> None:
    first = dist.new_group([0])

    def program(x, group):
        dist.all_reduce(x, group=group)
        return x * 2, dist.get_rank(group)

    same_at_each_call(program, (numbers(0, 3), first))


def mesh_as_argument() -> None:
    meshes = [
        init_device_mesh("cpu", (2,), mesh_dim_names=("dp",)),
        init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp")),
        init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "tp")),
    ]

    def program(x, mesh):
        dist.all_reduce(x, group=mesh.get_group("dp"))
        y = funcol.all_gather_tensor(x, 0, (mesh, 0))
        return y * mesh.size(), mesh.get_local_rank("dp"), mesh.ndim, mesh.mesh_dim_names

    same_at_each_call(program, *((numbers(0, 3), mesh) for mesh in meshes))


def facts_of_groups() -> None:
    """Queries of a group by a program are repeated at each call."""
    alone, both, _ = alone_and_together()

    def program(x, group):
        return x * group.size() + group.rank(), group.group_name, dist.get_backend(group), group.group_desc

    same_at_each_call(program, (numbers(0, 3), both), (numbers(0, 3), alone))
    ranks = thunder.jit(lambda x, group: x * len(dist.get_process_group_ranks(group)))
    for group in (both, alone):
        assert_equal(ranks(torch.ones(2), group), torch.ones(2) * group.size())


def work_from_outside() -> None:
    """Eager PyTorch makes a call that waits for a work from outside; `data_dependent="error"` names the method."""
    x, expected = numbers(0, 3), numbers(0, 3)
    work = dist.all_reduce(x, async_op=True)

    def program(x, work):
        work.wait()
        return x * 2

    method = "`wait` of an object of class torch.distributed.distributed_c10d.Work"
    with pytest.raises(OperationFailed, match=method):
        thunder.jit(program, data_dependent="error")(x, work)
    with pytest.warns(RecompileWarning, match=method):
        result = thunder.jit(program)(x, work)
    dist.all_reduce(expected)
    assert_equal(result, expected * 2)


def options_as_argument() -> None:
    """Options from outside are guarded by their values."""
    options = dist.AllreduceOptions()

    def program(x, options):
        dist.group.WORLD.allreduce([x], options).wait()
        return x * 2

    compiled = thunder.jit(program)
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.SUM):
        options.reduceOp = op
        assert_equal(compiled(numbers(0, 3), options), program(numbers(0, 3), options))


def reductions_of_a_class() -> None:
    """A reduction that is a separate object is distinguished from other reductions."""

    def program(x, op):
        dist.all_reduce(x, op)
        return x

    ops = [dist.ReduceOp(op) for op in (dist.ReduceOp.SUM, dist.ReduceOp.MIN)]
    same_at_each_call(program, *((numbers(0, 3), op) for op in ops))


def debug_level() -> None:
    """The debug level is queried again at each call."""
    before = dist.get_debug_level()

    def program(x):
        return x * 2 if dist.get_debug_level() == dist.DebugLevel.DETAIL else x

    compiled = thunder.jit(program)
    for level in (dist.DebugLevel.OFF, dist.DebugLevel.DETAIL, dist.DebugLevel.OFF):
        dist.set_debug_level(level)
        assert_equal(compiled(torch.ones(2)), program(torch.ones(2)))
    dist.set_debug_level(before)
