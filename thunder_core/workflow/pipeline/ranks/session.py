"""The session of several ranks: the reference model in one process, and the compiled model on all ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree

from thunder_core.foundation.errors import CannotReplay
from thunder_core.tracing.extension.leaving_out import require_modules
from thunder_core.tracing.extension.transform import prepared_model
from thunder_core.workflow.models.loading.load import load_model
from thunder_core.workflow.models.request.mode import put_into_mode
from thunder_core.workflow.pipeline.ranks.baselines import Baseline
from thunder_core.workflow.pipeline.ranks.link import Link
from thunder_core.workflow.pipeline.ranks.mesh import mesh_of_ranks
from thunder_core.workflow.pipeline.ranks.one_process import in_one_process, joined
from thunder_core.workflow.pipeline.ranks.rank import Rank, RanksGenerator
from thunder_core.workflow.pipeline.request.bench_request import OURS
from thunder_core.workflow.pipeline.request.purpose import Purpose
from thunder_core.workflow.pipeline.session.application import apply
from thunder_core.workflow.pipeline.session.prepare import Prepared
from thunder_core.workflow.pipeline.session.progress import CHECK_RECIPE
from thunder_core.workflow.pipeline.session.session import Session
from thunder_core.workflow.validation.precision import copy_sharing_parameters


@dataclass(frozen=True, eq=False)
class RanksSession(Session):
    """A session of several ranks; calls and generation run on all ranks.

    The model computes in one process: for training, the step of all ranks.
    """

    rank: Rank | None = None

    @property
    def optimized(self) -> Callable[..., Any]:
        """The function that runs a step on all ranks, from the inputs of all ranks."""
        assert self.rank is not None
        return partial(step_of_ranks, self.rank, self.model)

    @property
    def generator(self) -> Any:
        """The object that generates on all ranks."""
        assert self.rank is not None
        return RanksGenerator(self.rank, OURS)


def step_of_ranks(rank: Rank, model: torch.nn.Module, **inputs: Any) -> Any:
    """Run a step on all ranks; the backward of the loss passes the gradients to the parameters of the model."""
    buffers = [buffer.detach() for buffer in model.buffers()]
    parts = rank.ask("leaves", dict(inputs), torch.initial_seed(), buffers)
    for buffer, value in zip(buffers, rank.last.buffers, strict=True):
        buffer.copy_(value)
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    gradients = [rank.last.gradients.get(name) for name, _ in named]
    leaves = joined(parts)
    with torch.enable_grad():
        hand_over: Any = HandOver.apply
        parameters = (parameter for _, parameter in named)
        leaves[rank.last.loss] = hand_over(leaves[rank.last.loss], gradients, *parameters)
    return _pytree.tree_unflatten(leaves, rank.last.structure)


class HandOver(torch.autograd.Function):
    """An identity for the loss whose backward returns gradients that are already known."""

    @staticmethod
    def forward(ctx: Any, loss: torch.Tensor, gradients: list[torch.Tensor | None], *_: Any) -> torch.Tensor:
        """Return a copy of the loss."""
        ctx.gradients = gradients
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """Return the known gradients, scaled; a parameter without a gradient on all ranks gets None."""
        return None, None, *(None if known is None else known * gradient for known in ctx.gradients)


def open_rank(prepared: Prepared, purpose: Purpose, link: Link, begin: Callable[[str], None]) -> RanksSession:
    """Load the model and compile it on this rank; raise the errors of `open_model`.

    Raises `CannotReplay` for a recipe that also prepares the weights, because an artifact of several ranks cannot
    contain prepared weights.
    """
    loaded = load_model(prepared.model)
    begin(CHECK_RECIPE)
    prepared.recipe.validate_all(loaded.model)
    require_modules(prepared.recipe.composition.without, loaded.model)
    prepared, mesh = mesh_of_ranks(prepared, loaded.model.device)
    others = tuple(transform for transform in prepared.in_order if not transform.is_parallel)
    if prepared_model(loaded.model, others) is not loaded.model:
        raise CannotReplay(
            f"the recipe {prepared.recipe.name} also prepares the weights, which an artifact of several ranks cannot "
            "include",
            fix="leave out the recipe that quantizes, or use both recipes in a script: thunder_core.compile",
        )
    put_into_mode(loaded.model, train=purpose.train)
    parallel = (transform for transform in prepared.in_order if transform.is_parallel)
    model = prepared_model(copy_sharing_parameters(loaded.model), parallel)
    parts = prepared.parts_of_batch(link.launch.size)
    rank = Rank(link, partial(apply, prepared, model), Baseline(mesh, loaded.model), parts)
    reference: Any = in_one_process(loaded.model, parts) if purpose.train else loaded.model
    return RanksSession(
        replace(loaded, model=reference),
        purpose,
        lambda _: rank.compiled,
        names_of(prepared, link),
        prepared.model.seed,
        prepared.recipe.loosest_tolerance,
        rank=rank,
    )


def names_of(prepared: Prepared, link: Link) -> Mapping[str, str]:
    """Return the names that identify a measurement."""
    return {"model": prepared.model_name, "recipe": prepared.recipe.name, "ranks": str(link.launch.size)}
