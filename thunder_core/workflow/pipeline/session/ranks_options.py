"""Refuse options that programs of several ranks do not support, and numbers of ranks that a recipe cannot use."""

from __future__ import annotations

import math

from thunder_core.foundation.errors import BadOption, OutsideProcessGroup
from thunder_core.workflow.pipeline.request.launch import Launch
from thunder_core.workflow.pipeline.request.request import Request
from thunder_core.workflow.pipeline.session.executor_comparison import comparing_executors
from thunder_core.workflow.pipeline.session.prepare import PreparedModel

# The usual names of axes, for the examples in messages.
AXES = {"ddp": "replicate", "fsdp": "shard", "tensor-parallel": "tp"}
TENSOR_PARALLEL = "tensor-parallel"  # the recipe whose ranks can also generate
FIX_TENSOR_PARALLEL_ALONE = f"use the recipe {TENSOR_PARALLEL} alone, in combination with recipes for one process"
FIX_ADD_RECIPE = "add a recipe for several ranks (--recipe fsdp, ddp or tensor-parallel)"


def names_of(prepared: PreparedModel) -> list[str]:
    """Return the names of the recipes for several ranks, in the order of the axes of a mesh."""
    return [transform.name.replace("_", "-") for transform in prepared.parallel]


def require_axis_for_each(prepared: PreparedModel) -> None:
    """Raise `BadOption` if a combination of recipes for several ranks lacks a mesh with an axis for each recipe."""
    names, axes = names_of(prepared), len(prepared.mesh)
    if axes != len(names) and (axes or len(names) > 1):
        number_of_axes = f"{axes} {'axis' if axes == 1 else 'axes'}"
        raise BadOption(
            f"the mesh has {number_of_axes}, but the recipe {prepared.recipe.name} needs an axis for each of "
            f"{', '.join(names)}",
            fix="name an axis for each, in this order: "
            + " ".join(f"--mesh {AXES[name]}=2" for name in names)
            + (" (or leave out --mesh)" if len(names) == 1 else ""),
        )


def require_launch(request: Request, name: str, launch: Launch | None) -> Launch:
    """Return the launch of this process; raise `OutsideProcessGroup` if it was not started by `torchrun`."""
    if launch is None:
        purpose = "--task generate" if request.generates else "--train" if request.train else ""
        raise OutsideProcessGroup(
            f"the recipe {name} is for several processes, but this command runs in one",
            fix=f"torchrun --nproc-per-node 2 -m thunder_cli.main optimize --recipe {name} {purpose}".rstrip(),
        )
    return launch


def require_fitting_mesh(prepared: PreparedModel, launch: Launch) -> None:
    """Raise `BadOption` if the mesh has more or fewer ranks than there are processes."""
    ranks = math.prod(prepared.mesh.values())
    if prepared.mesh and ranks != launch.size:
        axes = " x ".join(f"{name}={size}" for name, size in prepared.mesh.items())
        raise BadOption(
            f"the mesh {axes} has {ranks} ranks, but {launch.size} processes run this command",
            fix=f"start {ranks} processes (`torchrun --nproc-per-node {ranks}`), or change --mesh",
        )


def require_fitting_ranks(request: Request, prepared: PreparedModel, launch: Launch | None) -> None:
    """Raise `BadOption` for options that do not support several ranks, and for several ranks with a recipe for one.

    Raises `OutsideProcessGroup` for a recipe for several ranks in a process that was not started by `torchrun`.
    """
    if not prepared.parallel:
        if request.mesh:
            raise BadOption(
                "--mesh is set, but no recipe is for several ranks", fix=f"leave out --mesh, or {FIX_ADD_RECIPE}"
            )
        if launch is not None and launch.size > 1:
            raise BadOption(
                f"{launch.size} processes run this command, but the recipe {prepared.recipe.name} is for one process",
                fix=f"{FIX_ADD_RECIPE}, or run the command without torchrun",
            )
        return
    require_axis_for_each(prepared)
    launch = require_launch(request, names_of(prepared)[-1], launch)
    require_purpose(request, names_of(prepared))
    require_fitting_mesh(prepared, launch)
    comparing = comparing_executors(prepared)
    refused = {
        "--dynamic": bool(request.dynamic),
        "--include-weights": request.include_weights,
        "--target": bool(request.target),
        "--cache": request.cache is not None,
        "--calibrate": bool(request.calibrate),
        f"the executor {', '.join(comparing)}": bool(comparing),
    }
    for option in (option for option, is_given in refused.items() if is_given):
        raise BadOption(
            f"the recipe {names_of(prepared)[-1]} and {option} exclude each other", fix="leave out one of the two"
        )


def require_purpose(request: Request, names: list[str]) -> None:
    """Raise `BadOption` for inference or generation, unless the only parallel recipe is `tensor-parallel`."""
    if request.generates and names != [TENSOR_PARALLEL]:
        other = next(name for name in names if name != TENSOR_PARALLEL)
        raise BadOption(f"the recipe {other} and --task generate exclude each other", fix=FIX_TENSOR_PARALLEL_ALONE)
    if not (request.train or names == [TENSOR_PARALLEL]):
        other = next(name for name in names if name != TENSOR_PARALLEL)
        raise BadOption(
            f"the recipe {other} is for training, and --train is missing",
            fix=f"add --train; for inference, {FIX_TENSOR_PARALLEL_ALONE}",
        )
