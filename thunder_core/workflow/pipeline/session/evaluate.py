"""The evaluation of eager PyTorch and of the optimized model on batches of real samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import PretrainedConfig

from thunder_core.foundation.errors import BadData
from thunder_core.workflow.models.inputs.batches import CAUSAL, Batches
from thunder_core.workflow.models.inputs.dataset import Dataset
from thunder_core.workflow.models.inputs.input_names import MASK
from thunder_core.workflow.models.inputs.labels import REGRESSION_TASKS, is_regression
from thunder_core.workflow.models.loading.loaded_model import LoadedModel
from thunder_core.workflow.models.request.task import LANGUAGE_TASKS
from thunder_core.workflow.pipeline.request.purpose import Purpose
from thunder_core.workflow.validation.leaves import leaves_of
from thunder_core.workflow.validation.metric import EvaluatedBatch, MetricSums, count, result
from thunder_core.workflow.validation.report import Evaluation

CLASSIFICATION_TASKS = frozenset(
    {
        "sequence-classification",
        "token-classification",
        "image-classification",
        "audio-classification",
        "video-classification",
        "audio-frame-classification",
        "multiple-choice",
        "next-sentence-prediction",
        "question-answering",
        "document-question-answering",
        "visual-question-answering",
        "semantic-segmentation",
    }
)
ANSWER_TASKS = frozenset({"question-answering", "document-question-answering"})
ANSWER_LABELS = "`start_positions` and `end_positions`"
METRICS = dict.fromkeys(LANGUAGE_TASKS, "perplexity") | dict.fromkeys(CLASSIFICATION_TASKS, "accuracy")


def metric_for(task: str, config: PretrainedConfig) -> str:
    """Return the metric of a task.

    The metric is perplexity for language, accuracy for classes, the mean squared error for numbers, and otherwise the
    cosine similarity of embeddings.
    """
    if task == "depth-estimation" or (task in REGRESSION_TASKS and is_regression(config)):
        return "mse"
    return METRICS.get(task, "cosine")


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
    chosen = metric or metric_for(loaded.task, loaded.config)
    batches = Batches(loaded, data, min(batch, len(data)), seq, cut)
    tally, total = MetricSums(), len(data)
    for first in range(0, total, batch):
        numbers = list(range(first, min(first + batch, total)))
        inputs = batches.of_rows([*numbers, *[numbers[-1]] * (batch - len(numbers))])
        with torch.no_grad():
            eager, optimized = (
                leaves_of(function(**inputs)) for function in (loaded.original or loaded.model, compiled)
            )
        for leaves in (eager, optimized):
            leaves.tensors = {name: _without_padding(tensor, len(numbers)) for name, tensor in leaves.tensors.items()}
        mask = _without_padding(inputs[MASK], len(numbers)) if MASK in inputs else None
        labels = batches.labels_of(numbers) if chosen != "cosine" else None
        count(chosen, tally, EvaluatedBatch(eager, optimized, labels, mask, causal=loaded.task in CAUSAL))
        advance(first + len(numbers), total)
    before, after = result(chosen, tally)
    return Evaluation(metric=chosen, file=data.name, samples=total, counted=tally.counted, before=before, after=after)


def require_judgeable(
    loaded: LoadedModel, data: Dataset, batch: int, seq: int, purpose: Purpose, metric: str | None
) -> None:
    """Raise `BadData` for samples that the model does not accept, or without labels if the metric needs them."""
    batches = Batches(loaded, data, min(batch, len(data)), seq, purpose.cut)
    chosen = metric or metric_for(loaded.task, loaded.config)
    if chosen != "cosine" and batches.labels_of([0]) is None:
        raise BadData(
            f"{data.file} has no `labels`, which {chosen} needs",
            fix=f"add {ANSWER_LABELS if loaded.task in ANSWER_TASKS else '`labels`'} to each sample, "
            "or use --metric cosine",
        )


def _without_padding(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """Return the first `count` rows of a tensor; the other rows repeat the last sample. Scalars are unchanged."""
    return tensor[:count] if tensor.ndim else tensor
