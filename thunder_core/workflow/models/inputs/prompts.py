"""Random prompts, in the form that `generate` of the transformers library takes."""

from __future__ import annotations

import torch

from thunder_core.foundation.errors import CannotGenerate
from thunder_core.workflow.models.inputs.input_names import IDS, MASK
from thunder_core.workflow.models.inputs.random_inputs import RandomInputs
from thunder_core.workflow.models.loading.loaded_model import LoadedModel


def require_generation(loaded: LoadedModel) -> None:
    """Raise `CannotGenerate` for a model without `generate`, or a model that does not generate from text."""
    kind = type(loaded.model).__name__
    if not loaded.model.can_generate():
        raise CannotGenerate(
            f"{kind} has no `generate`: its class is not a GenerationMixin of the transformers library",
            fix="use a model that generates, or leave out `--task generate`",
        )
    if loaded.model.main_input_name != IDS:
        raise CannotGenerate(
            f"{kind} generates from {loaded.model.main_input_name!r}, but prompts are text",
            fix="leave out `--task generate` to optimize single calls",
        )


def random_prompts(
    loaded: LoadedModel, *, batch: int, length: int, seed: int, padded: bool = False
) -> dict[str, torch.Tensor]:
    """Return random prompts and their mask, [batch, length] int64, on the model's device, determined by the seed.

    If `padded` is set, the first prompt has no padding, and all other prompts begin with at least one padding token.
    """
    draw = RandomInputs.from_seed(loaded.config, batch=batch, seq=length, seed=seed)
    ids = draw.tokens(length)
    mask = torch.ones_like(ids)
    for row in range(1, batch if padded else 1):
        missing = draw.number(1, max(2, length))
        ids[row, :missing] = draw.padding
        mask[row, :missing] = 0
    return {IDS: ids.to(loaded.model.device), MASK: mask.to(loaded.model.device)}
