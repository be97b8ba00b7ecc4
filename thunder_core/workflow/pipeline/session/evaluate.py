"""The evaluation of a model on real samples before and after: eager PyTorch and the optimized model, by batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from thunder_core.foundation.errors import BadData
from thunder_core.workflow.models.inputs.batches import CAUSAL, MASK, Batches
from thunder_core.workflow.models.inputs.dataset import Dataset
from thunder_core.workflow.models.loading.loaded_model import LoadedModel
from thunder_core.workflow.models.request.task import LANGUAGE_TASKS
from thunder_core.workflow.pipeline.request.purpose import Purpose
from thunder_core.workflow.validation.leaves import leaves_of
from thunder_core.workflow.validation.metric import EvaluatedBatch, Tally, count, result
from thunder_core.workflow.validation.report import Evaluation

CLASSIFIED = frozenset(
    {
        "sequence-classification",
        "token-classification",
        "image-classification",
        "audio-classification",
        "multiple-choice",
        "next-sentence-prediction",
    }
)


def metric_for(task: str) -> str:
    """Return the metric of a task: perplexity for language, accuracy for classes, otherwise cosine of embeddings."""
    return "perplexity" if task in LANGUAGE_TASKS else "accuracy" if task in CLASSIFIED else "cosine"


def evaluate(
    compiled: Callable[..., Any],
    loaded: LoadedModel,
    data: Dataset,
    *,
    batch: int,
    seq: int,
    cut: bool,
    metric: str | None = None,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> Evaluation:
    """Evaluate both models on all samples of a file in batches of one size; the last batch is padded.

    Raises `BadData` for a file that does not fit the model, or lacks data for the metric.
    """
    chosen = metric or metric_for(loaded.task)
    batches = Batches(loaded, data, min(batch, len(data)), seq, cut)
    tally, total = Tally(), len(data)
    for first in range(0, total, batch):
        numbers = list(range(first, min(first + batch, total)))
        inputs = batches.of_rows([*numbers, *[numbers[-1]] * (batch - len(numbers))])
        with torch.no_grad():
            eager, ours = (leaves_of(function(**inputs)) for function in (loaded.original or loaded.model, compiled))
        for leaves in (eager, ours):
            leaves.tensors = {name: _real(tensor, len(numbers)) for name, tensor in leaves.tensors.items()}
        mask = _real(inputs[MASK], len(numbers)) if MASK in inputs else None
        labels = batches.labels_of(numbers) if chosen != "cosine" else None
        count(chosen, tally, EvaluatedBatch(eager, ours, labels, mask, causal=loaded.task in CAUSAL))
        advance(first + len(numbers), total)
    before, after = result(chosen, tally)
    return Evaluation(metric=chosen, file=data.name, samples=total, counted=tally.counted, before=before, after=after)


def require_judgeable(
    loaded: LoadedModel, data: Dataset, batch: int, seq: int, purpose: Purpose, metric: str | None
) -> None:
    """Raise `BadData` for samples that the model does not accept, or without labels if the metric needs them."""
    batches = Batches(loaded, data, min(batch, len(data)), seq, purpose.cut)
    chosen = metric or metric_for(loaded.task)
    if chosen != "cosine" and batches.labels_of([0]) is None:
        raise BadData(
            f"{data.file} has no `labels`, which {chosen} needs",
            fix="add `labels` to each sample, or use --metric cosine",
        )


def _real(tensor: torch.Tensor, count: int) -> torch.Tensor:
    return tensor[:count] if tensor.ndim else tensor
