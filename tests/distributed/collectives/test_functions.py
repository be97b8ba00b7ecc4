"""Each function of `torch.distributed` is compared with eager, called again at each call, or refused by name."""

from __future__ import annotations

import inspect
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.nn.functional as dnf

import thunder_core as thunder
from tests.distributed.collectives import functions as programs
from tests.distributed.comparison import assert_refused
from tests.distributed.ranks import Ranks
from thunder_core.foundation.errors import ThunderError
from thunder_core.frontend.acquire.lookasides.operators.collectives import REFUSED_FUNCTIONS

COMPARED = (
    *("all_gather", "all_gather_into_tensor", "all_gather_single", "all_reduce", "all_reduce_coalesced", "all_to_all"),
    *("all_to_all_single", "barrier", "batch_isend_irecv", "broadcast", "gather", "irecv", "isend", "recv", "reduce"),
    *("monitored_barrier", "reduce_scatter", "reduce_scatter_single", "reduce_scatter_tensor", "scatter", "send"),
    *("_all_gather_base", "_reduce_scatter_base", "_coalescing_manager"),
)
ASKED = (
    *("get_backend", "get_backend_config", "get_debug_level", "get_default_backend_for_device", "get_global_rank"),
    *("get_group_rank", "get_node_local_rank", "get_pg_count", "get_process_group_ranks", "get_rank"),
    *("get_world_size", "is_available", "is_backend_available", "is_gloo_available", "is_initialized"),
    *("is_mpi_available", "is_nccl_available", "is_torchelastic_launched", "is_ucc_available", "is_xccl_available"),
    *("supports_complex", "_rank_not_in_group", "_get_process_group_name", "_supports_window", "_supports_reconfigure"),
)
# What takes no part: names of types, and a function that looks at sizes alone.
OTHERS = ["GroupName", "_compute_bucket_assignment_by_size", "_is_spmd_types_available", "_spmd_no_typecheck"]
HELPERS = ("_backward", "_setup_context", "_meta")
REFUSED_BY_METHOD = ["all_gather_coalesced"]


def functions() -> Iterator[str]:
    """The names of the functions of `torch.distributed`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        values = {name: getattr(dist, name) for name in dir(dist) if not name.startswith("__") and name != "reduce_op"}
    for name, value in values.items():
        if callable(value) and not inspect.isclass(value) and not inspect.ismodule(value):
            yield name


def test_each_function_has_an_answer() -> None:
    assert set(functions()) <= {*COMPARED, *ASKED, *REFUSED_FUNCTIONS.values(), *REFUSED_BY_METHOD, *OTHERS}


def functions_in(module: ModuleType) -> set[str]:
    """The names of a module's own functions, without helpers of autograd and of meta tensors."""
    own = {name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__}
    return {name for name in own if inspect.isfunction(getattr(module, name)) and not name.endswith(HELPERS)}


def test_each_function_of_the_functional_modules_has_a_program() -> None:
    assert functions_in(dnf) - {"_deprecated", "_not_supported_under_compile"} <= set(programs.DIFFERENTIABLE)
    public = {name for name in functions_in(funcol) if not name.startswith("_")}
    assert public - {"allow_inflight_collective_as_graph_input_ctx"} <= {
        *programs.FUNCTIONAL,
        *programs.ONLY_IN_TRACING,
    }


@pytest.mark.parametrize("kind", ["differentiable", "functional", "dtensor"])
def test_each_function_gives_eagers_results(ranks: Ranks, kind: str) -> None:
    ranks.run("tests.distributed.collectives.functions", "functions_equal_eager", kind)


DTENSORS = (
    "gradients_equal_eager dtensors_as_arguments gradients_of_dtensors_are_refused meshes_in_programs_are_refused"
)


@pytest.mark.parametrize("name", DTENSORS.split())
def test_gradients_and_dtensors(ranks: Ranks, name: str) -> None:
    ranks.run("tests.distributed.collectives.functions", name)


@contextmanager
def group_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def program_calling(name: str) -> Any:
    """A program that calls a function with no arguments."""

    def program(x: torch.Tensor) -> torch.Tensor:
        getattr(dist, name)()
        return x * 2

    return program


@pytest.mark.parametrize("name", sorted(REFUSED_FUNCTIONS.values()))
def test_refused_function_is_named(name: str) -> None:
    with group_of_one():
        assert_refused(program_calling(name), torch.ones(2), name=f"torch.distributed.{name}")


WITHOUT_DISTRIBUTED = """
import torch
torch.distributed.is_available = lambda: False
import thunder_core as thunder
assert torch.equal(thunder.jit(lambda x: x * 2)(torch.ones(2)), torch.ones(2) * 2)
"""


def test_program_compiles_where_distributed_is_not_available() -> None:
    ran = subprocess.run([sys.executable, "-c", WITHOUT_DISTRIBUTED], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def test_initialization_is_queried_again() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x * (dist.get_world_size() + 1 if dist.is_initialized() else 10)

    compiled = thunder.jit(program)
    assert compiled(torch.ones(1)).item() == 10
    with group_of_one():
        assert compiled(torch.ones(1)).item() == 2
    assert compiled(torch.ones(1)).item() == 10


def test_group_that_is_gone_is_named() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(x)
        return x * 2

    compiled = thunder.jit(program)
    with group_of_one():
        assert compiled(torch.ones(1)).item() == 2
    with pytest.raises((ThunderError, ValueError), match="process group"):
        compiled(torch.ones(1))
    with group_of_one():
        assert compiled(torch.ones(1)).item() == 2
