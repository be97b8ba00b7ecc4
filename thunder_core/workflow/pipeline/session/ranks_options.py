"""Options that programs of several ranks cannot serve, and ranks that a recipe cannot use."""

from __future__ import annotations

from thunder_core.foundation.errors import BadOption, OutsideProcessGroup
from thunder_core.workflow.pipeline.request.launch import Launch
from thunder_core.workflow.pipeline.request.request import Request
from thunder_core.workflow.pipeline.session.executor_comparison import comparing_executors
from thunder_core.workflow.pipeline.session.prepare import Prepared

# How to run a model without training, for recipes with which this is useful.
INFERENCE = {
    "tensor-parallel": "; for inference, start a script with torchrun that calls thunder_core.compile and then "
    "`generate` of the compiled model, on all ranks with the same inputs"
}


def require_fitting_ranks(request: Request, prepared: Prepared, launch: Launch | None) -> None:
    """Raise `BadOption` for options that several ranks cannot serve, and for several ranks with a recipe for one.

    Raises `OutsideProcessGroup` for a recipe for several ranks in a process that was not started by `torchrun`.
    """
    if prepared.parallel is None:
        if launch is not None and launch.size > 1:
            raise BadOption(
                f"{launch.size} processes run this command, but the recipe {prepared.recipe.name} is for one process",
                fix="add a recipe for several ranks (--recipe fsdp, ddp or tensor-parallel), or run the command "
                "without torchrun",
            )
        return
    name = prepared.parallel.name.replace("_", "-")
    if sum(transform.is_parallel for transform in prepared.in_order) > 1:
        raise BadOption(
            f"the recipe {prepared.recipe.name} needs a mesh of two axes, and an artifact cannot name the groups of "
            "all ranks of such a mesh",
            fix="start a script with torchrun, and pass the groups of a mesh to thunder_core.compile, as in "
            "docs/distributed.md; or use one of the two recipes here",
        )
    if launch is None:
        raise OutsideProcessGroup(
            f"the recipe {name} trains on several processes, but this command runs in one",
            fix=f"torchrun --nproc-per-node 2 -m thunder_cli.main optimize --recipe {name} --train",
        )
    if not request.train:
        raise BadOption(
            f"the recipe {name} is for training, and --train is missing",
            fix="add --train" + INFERENCE.get(name, ""),
        )
    comparing = comparing_executors(prepared)
    refused = {
        "--dynamic": bool(request.dynamic),
        "--include-weights": request.include_weights,
        f"the executor {', '.join(comparing)}": bool(comparing),
    }
    for option in (option for option, is_given in refused.items() if is_given):
        raise BadOption(f"the recipe {name} and {option} exclude each other", fix="leave out one of the two")
