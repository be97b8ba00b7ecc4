"""A program for each function of the functional modules of `torch.distributed`, and for DTensors, run on each rank."""

# mypy: disable-error-code="no-untyped-call,no-untyped-def"

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.nn.functional as dnf
import torch.distributed.tensor as dtensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import thunder_core as thunder
from tests.distributed.collectives.collectives import numbers, one
from tests.distributed.comparison import assert_equal, assert_refused, assert_same
from thunder_core.foundation.errors import OperationFailed

WORLD: Any = "0"  # the name of the default group
Program = Callable[[torch.Tensor], Any]


def several(x: torch.Tensor) -> list[torch.Tensor]:
    """A tensor for each rank."""
    return [x * (rank + 1) for rank in range(dist.get_world_size())]


def in_place(function: Callable[..., Any]) -> Program:
    """A program that returns a tensor into which a function copies its argument."""

    def program(x):
        output = x.new_zeros(x.shape[0] * dist.get_world_size(), *x.shape[1:])
        function(output, x, group=dist.group.WORLD)
        return output

    return program


def sent_to_next(x):
    y = torch.zeros_like(x)
    work = funcol.isend_inplace(x, 1) if dist.get_rank() == 0 else funcol.irecv_inplace(y, 0)
    funcol.wait_tensor(work)
    return y


def all_reduced(x):
    y = x.clone()
    funcol.all_reduce_inplace(y, "sum", WORLD)
    return y


def gathered_in_list(x):
    parts = [torch.empty_like(x) for _ in several(x)]
    funcol.all_gather_inplace(parts, x, WORLD)
    return parts


def scattered(x):
    output = x.new_zeros(x.shape[0] // 2, *x.shape[1:])
    funcol.reduce_scatter_tensor_inplace(output, x, "sum", WORLD)
    return output


def scattered_from_list(x):
    output = torch.empty_like(x)
    funcol.reduce_scatter_inplace(output, several(x))
    return output


def exchanged(x):
    output = torch.empty_like(x)
    funcol.all_to_all_inplace(output, x, group=dist.group.WORLD)
    return output


DIFFERENTIABLE: Mapping[str, Program] = {
    "all_gather": lambda x: dnf.all_gather(x),
    "all_reduce": lambda x: dnf.all_reduce(x),
    "all_to_all": lambda x: dnf.all_to_all([torch.empty_like(x) for _ in several(x)], several(x)),
    "all_to_all_single": lambda x: dnf.all_to_all_single(torch.empty_like(x), x * 2),
    "broadcast": lambda x: dnf.broadcast(x, 1),
    "gather": lambda x: dnf.gather(x, 1),
    "reduce": lambda x: dnf.reduce(x, 1) * dist.get_rank(),
    "reduce_scatter": lambda x: dnf.reduce_scatter(torch.zeros_like(x), several(x)),
    "scatter": lambda x: dnf.scatter(several(x), 0),
    "_all_gather_base": lambda x: dnf._all_gather_base(x.new_empty(8, 3), x),
}
FUNCTIONAL: Mapping[str, Program] = {
    "all_gather_inplace": gathered_in_list,
    "all_gather_into_tensor_coalesced": lambda x: funcol.all_gather_into_tensor_coalesced([x, x * 2], WORLD),
    "all_gather_single": lambda x: funcol.all_gather_single(x, 0, WORLD),
    "all_gather_single_autograd": lambda x: funcol.all_gather_single_autograd(x, 1, WORLD),
    "all_gather_single_coalesced": lambda x: funcol.all_gather_single_coalesced([x, x * 2], WORLD),
    "all_gather_tensor": lambda x: funcol.all_gather_tensor(x, 1, WORLD),
    "all_gather_tensor_autograd": lambda x: funcol.all_gather_tensor_autograd(x, 0, WORLD),
    "all_gather_tensor_inplace": in_place(funcol.all_gather_tensor_inplace),
    "all_reduce": lambda x: funcol.all_reduce(x, "max", WORLD),
    "all_reduce_coalesced": lambda x: funcol.all_reduce_coalesced([x, x * 2], "sum", WORLD),
    "all_reduce_inplace": all_reduced,
    "all_to_all_inplace": exchanged,
    "all_to_all_single": lambda x: funcol.all_to_all_single(x, None, None, WORLD),
    "all_to_all_single_autograd": lambda x: funcol.all_to_all_single_autograd(x, None, None, WORLD),
    "broadcast": lambda x: funcol.broadcast(x, 1, WORLD),
    "irecv_inplace": sent_to_next,
    "isend_inplace": sent_to_next,
    "permute_tensor": lambda x: funcol.permute_tensor(x.flatten(), [1, 0], dist.group.WORLD),
    "reduce_scatter_single": lambda x: funcol.reduce_scatter_single(x, "sum", 0, WORLD),
    "reduce_scatter_single_autograd": lambda x: funcol.reduce_scatter_single_autograd(x, "sum", 0, WORLD),
    "reduce_scatter_single_coalesced": lambda x: funcol.reduce_scatter_single_coalesced([x, x], "sum", [0, 0], WORLD),
    "reduce_scatter_tensor": lambda x: funcol.reduce_scatter_tensor(x, "sum", 0, WORLD),
    "reduce_scatter_tensor_autograd": lambda x: funcol.reduce_scatter_tensor_autograd(x, "sum", 0, WORLD),
    "reduce_scatter_tensor_coalesced": lambda x: funcol.reduce_scatter_tensor_coalesced([x, x], "sum", [0, 0], WORLD),
    "reduce_scatter_tensor_inplace": scattered,
    **({"reduce_scatter_inplace": scattered_from_list} if hasattr(funcol, "reduce_scatter_inplace") else {}),
    "wait_tensor": lambda x: funcol.wait_tensor(torch.ops._c10d_functional.all_reduce(x, "sum", WORLD)),
}
# Functions that only PyTorch's own tracing calls.
ONLY_IN_TRACING = {"batch_p2p_ops_inplace"}


@functools.cache
def mesh() -> DeviceMesh:
    """A mesh of all ranks."""
    return init_device_mesh("cpu", (dist.get_world_size(),))


def local(x: torch.Tensor, *placements: Any) -> DTensor:
    """A DTensor with the given part on this rank."""
    return DTensor.from_local(x, mesh(), placements or [Shard(0)], run_check=False)


def written(x):
    tensor = local(x * 1)
    tensor.add_(1).mul_(tensor)
    return tensor.full_tensor()


def seeded(x):
    torch.manual_seed(3)
    return torch.nn.functional.dropout(local(x), 0.5).to_local()


@functools.cache
def parallelized() -> torch.nn.Module:
    """A module whose hooks distribute its input and gather its output."""
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3)).double()
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    return parallelize_module(layers.requires_grad_(False), mesh(), plan)


DTENSORS: Mapping[str, Program] = {
    "full_tensor": lambda x: local(x.sin()).full_tensor() * 2,
    "to_local": lambda x: (local(x) @ local(x.t().contiguous(), Replicate())).to_local(),
    "redistribute to shards": lambda x: local(x, Replicate()).redistribute(placements=[Shard(0)]).to_local(),
    "redistribute to replicas": lambda x: local(x).redistribute(placements=[Replicate()]).to_local(),
    "redistribute to other shards": lambda x: local(x.repeat(1, 2)).redistribute(placements=[Shard(1)]).to_local(),
    "redistribute partial sums": lambda x: local(x, Partial()).redistribute(placements=[Shard(0)]).to_local(),
    "redistribute later": lambda x: local(x).redistribute(placements=[Replicate()], async_op=True).to_local() + 1,
    "reduction": lambda x: local(x).sum().full_tensor(),
    "distribute_tensor": lambda x: dtensor.distribute_tensor(x * 2, mesh(), [Shard(0)]).to_local(),
    "factories": lambda x: dtensor.ones(4, 3, device_mesh=mesh(), placements=[Shard(0)]).full_tensor() * x,
    "number": lambda x: x * local(x).sum().full_tensor().item(),
    "facts": lambda x: x * local(x).shape[0] * mesh().size() * (2 if local(x).placements[0].is_shard() else 3),
    "module with hooks": lambda x: parallelized()(x),
    "writes": written,
    "random numbers": seeded,
}


TABLES = {"differentiable": DIFFERENTIABLE, "functional": FUNCTIONAL, "dtensor": DTENSORS}


def functions_equal_eager(kind: str) -> None:
    """Each program gives eager's results at each call, also for a leaf of autograd."""
    mesh(), parallelized()
    for name, program in TABLES[kind].items():
        try:
            assert_same(program, one)
        except Exception as error:
            raise AssertionError(name) from error


def gradients_equal_eager() -> None:
    """The gradients of each function of `torch.distributed.nn.functional` are eager's."""
    for name, program in DIFFERENTIABLE.items():
        if name == "_all_gather_base":  # gloo has no backward for this function
            continue
        results = []
        for function in (program, thunder.jit(program)):
            x = numbers(0, 4, 3).requires_grad_()
            result = function(x)
            outputs = [result] if isinstance(result, torch.Tensor) else result
            sum((output**2).sum() for output in outputs).backward()
            results.append(x.grad)
        assert_equal(*results)


def dtensors_as_arguments() -> None:
    """Placements are guarded, and a result is a DTensor."""
    compiled = thunder.jit(lambda tensor: tensor * 2 + len(tensor.placements))
    for placements in ([Shard(0)], [Replicate()], [Shard(0)]):
        tensor = dtensor.distribute_tensor(numbers(0, 4, 3), mesh(), placements)
        result = compiled(tensor)
        assert type(result) is DTensor
        assert (result.placements, result.device_mesh) == (tuple(placements), mesh())
        assert_equal(result.to_local(), tensor.to_local() * 2 + 1)


def gradients_of_dtensors_are_refused() -> None:
    def program(x):
        return (local(x) * 2).full_tensor()

    mesh()  # a program must not make one
    assert_refused(
        program, numbers(0, 4, 3).requires_grad_(), name="a tensor of class DTensor, which wraps other tensors"
    )
    with torch.no_grad():
        assert_equal(thunder.jit(program)(numbers(0, 4, 3)), program(numbers(0, 4, 3)))


def meshes_in_programs_are_refused() -> None:
    def program(x):
        init_device_mesh("cpu", (2,))
        return x

    error = assert_refused(program, numbers(0, 4, 3), name="torch.distributed.init_device_mesh")
    assert isinstance(error, OperationFailed)
