"""The session of several ranks: the reference model in one process, and the compiled model on all ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree

from thunder_core.backend.quantization.linear import QuantizedLinear
from thunder_core.tracing.extension.transform import prepare_model
from thunder_core.workflow.models.loading.fingerprint import structure_fingerprint
from thunder_core.workflow.models.request.mode import put_into_mode
from thunder_core.workflow.pipeline.ranks.baselines import Baseline
from thunder_core.workflow.pipeline.ranks.link import Link
from thunder_core.workflow.pipeline.ranks.mesh import mesh_of_ranks
from thunder_core.workflow.pipeline.ranks.one_process import in_one_process, join_results
from thunder_core.workflow.pipeline.ranks.rank import Rank, RanksGenerator, float_buffers
from thunder_core.workflow.pipeline.request.bench_request import THUNDER
from thunder_core.workflow.pipeline.session.application import apply
from thunder_core.workflow.pipeline.session.prepare import PreparedModel
from thunder_core.workflow.pipeline.session.session import Session
from thunder_core.workflow.validation.model_copies import copy_sharing_parameters


@dataclass(frozen=True, eq=False)
class RanksSession(Session):
    """A session of several ranks; calls and generation run on all ranks.

    `model` is the reference, which runs in one process: for training, it computes the steps of all ranks.
    """

    rank: Rank | None = None

    @property
    def optimized(self) -> Callable[..., Any]:
        """The function that runs a call on all ranks, from the inputs of all ranks."""
        assert self.rank is not None
        return partial(call_of_ranks, self.rank, self.model)

    @property
    def rounding_dtype(self) -> torch.dtype:
        """The dtype to which results are rounded: the model's, or bfloat16 if ranks sum rounded products of layers."""
        layers = (layer for layer in self.model.modules() if isinstance(layer, QuantizedLinear))
        return super().rounding_dtype if all(layer.sums_exactly for layer in layers) else torch.bfloat16

    @property
    def generator(self) -> Any:
        """The object that generates on all ranks."""
        assert self.rank is not None
        return RanksGenerator(self.rank, THUNDER)


def call_of_ranks(rank: Rank, model: torch.nn.Module, **inputs: Any) -> Any:
    """Run a call on all ranks; the backward of a loss passes the gradients to the parameters of the model."""
    buffers = float_buffers(model)
    parts = rank.ask("leaves", dict(inputs), torch.initial_seed(), buffers)
    for buffer, value in zip(buffers, rank.last.buffers, strict=True):
        buffer.copy_(value)
    leaves = join_results(parts)
    if rank.last.loss is None:
        return _pytree.tree_unflatten(leaves, rank.last.structure)
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    gradients = [rank.last.gradients.get(name) for name, _ in named]
    with torch.enable_grad():
        with_known_gradients: Any = KnownGradients.apply
        parameters = (parameter for _, parameter in named)
        leaves[rank.last.loss] = with_known_gradients(leaves[rank.last.loss], gradients, *parameters)
    return _pytree.tree_unflatten(leaves, rank.last.structure)


class KnownGradients(torch.autograd.Function):
    """A function that returns the loss; its backward returns the gradients that the ranks have computed."""

    @staticmethod
    def forward(ctx: Any, loss: torch.Tensor, gradients: list[torch.Tensor | None], *_: Any) -> torch.Tensor:
        """Return a copy of the loss."""
        ctx.gradients = gradients
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """Return the computed gradients, scaled by the gradient of the loss; None for parameters without one."""
        return (
            None,
            None,
            *(
                None if parameter_gradient is None else parameter_gradient * gradient
                for parameter_gradient in ctx.gradients
            ),
        )


def open_rank(prepared: PreparedModel, session: Session, link: Link) -> RanksSession:
    """Compile the model of a session on this rank, divided by the parallel transforms of a recipe.

    The model of the session is prepared by the other transforms of the recipe.
    """
    loaded, purpose = session.loaded, session.purpose
    prepared, mesh = mesh_of_ranks(prepared, loaded.model.device)
    put_into_mode(loaded.model, train=purpose.train)
    parallel = (transform for transform in prepared.in_order if transform.is_parallel)
    model = prepare_model(copy_sharing_parameters(loaded.model), parallel)
    parts = prepared.parts_of_batch(link.launch.size)
    rank = Rank(link, partial(apply, prepared, model), Baseline(mesh, session.original), parts, purpose.train)
    reference: Any = in_one_process(loaded.model, parts) if purpose.train else loaded.model
    return RanksSession(
        replace(loaded, model=reference, fingerprint=structure_fingerprint(model)),
        purpose,
        lambda _: rank.compiled,
        names_of(prepared, link),
        session.seed,
        session.tolerance,
        rank=rank,
    )


def names_of(prepared: PreparedModel, link: Link) -> Mapping[str, str]:
    """Return the names that identify a measurement."""
    return {"model": prepared.model_name, "recipe": prepared.recipe.name, "ranks": str(link.launch.size)}
