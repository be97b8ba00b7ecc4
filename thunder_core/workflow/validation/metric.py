"""Metrics of a model on real samples: accuracy, perplexity, squared error, and the cosine similarity of outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from thunder_core.foundation.errors import BadData
from thunder_core.foundation.transformers_versions import CACHE_NAMES
from thunder_core.workflow.validation.leaves import Leaves
from thunder_core.workflow.validation.report import LOSS

IGNORED_LABEL = -100  # the label that torch.nn.functional.cross_entropy leaves out
LARGEST_EXPONENT = 709.0  # the largest integer whose exponential is finite in float64
EMBEDDINGS = (
    *("sentence_embedding", "pooler_output", "text_embeds", "image_embeds", "embeddings"),
    *("last_hidden_state", "logits"),
)
NON_RESULT_OUTPUTS = (*CACHE_NAMES, "encoder_last_hidden_state")  # outputs that are not results
SPAN_LOGITS = ("start_logits", "end_logits")  # the logits of the first and the last token of an answer
NUMBER_OUTPUTS = ("predicted_depth", "logits")  # the outputs that are predicted numbers


@dataclass(frozen=True)
class EvaluatedBatch:
    """The outputs of eager and of the optimized model for a batch, its labels, and the mask of its tokens.

    If `causal` is set, the logits at a position are for the next token.
    """

    eager: Leaves
    optimized: Leaves
    labels: torch.Tensor | None
    mask: torch.Tensor | None
    causal: bool = False


@dataclass
class MetricSums:
    """The sums of a metric over the batches so far, for eager (`before`) and the optimized model (`after`)."""

    counted: int = 0
    before: float = 0.0
    after: float = 0.0

    def add(self, counted: int, before: float, after: float) -> None:
        """Add the sums of a batch with `counted` elements."""
        self.counted += counted
        self.before += before
        self.after += after


def _accuracy(tally: MetricSums, batch: EvaluatedBatch) -> None:
    """Add the number of positions whose largest logit is the label's.

    If the labels are a score for each class, add the scores of the classes with the largest logits.
    """
    both = [_logits(leaves, batch) for leaves in (batch.eager, batch.optimized)]
    if batch.labels is not None and batch.labels.shape == both[0].shape:
        scores = batch.labels.double()
        before, after = (float(scores.gather(-1, logits.argmax(-1, keepdim=True)).sum()) for logits in both)
        tally.add(math.prod(scores.shape[:-1]), before, after)
        return
    labels = _labels(batch)
    counted = labels != IGNORED_LABEL
    choices = (_fit_labels(logits, labels).argmax(-1) for logits in both)
    before, after = (float((choice == labels)[counted].sum()) for choice in choices)
    tally.add(int(counted.sum()), before, after)


def _perplexity(tally: MetricSums, batch: EvaluatedBatch) -> None:
    """Add the negative log-likelihoods of the labels, in nats."""
    labels = _labels(batch)
    before, after = (_loss(_logits(leaves, batch), labels) for leaves in (batch.eager, batch.optimized))
    tally.add(int((labels != IGNORED_LABEL).sum()), before, after)


def _squared_error(tally: MetricSums, batch: EvaluatedBatch) -> None:
    """Add the squared differences between the predicted numbers and the labels."""
    before, after = (_squared_errors(leaves, batch.labels) for leaves in (batch.eager, batch.optimized))
    tally.add(before.numel(), float(before.sum()), float(after.sum()))


def _cosine(tally: MetricSums, batch: EvaluatedBatch) -> None:
    """Add the cosine similarities of eager's embeddings to themselves, and to the optimized embeddings."""
    eager, optimized = _embedding(batch.eager, batch.mask), _embedding(batch.optimized, batch.mask)
    if eager.shape != optimized.shape:
        raise BadData(
            f"the outputs of eager and of the optimized model have the shapes {list(eager.shape)} and "
            f"{list(optimized.shape)}, which no cosine similarity compares",
            fix="use another --metric",
        )
    before, after = (
        float(torch.nn.functional.cosine_similarity(eager, embedding, dim=-1).sum()) for embedding in (eager, optimized)
    )
    tally.add(len(eager), before, after)


METRICS: Mapping[str, tuple[Callable[[MetricSums, EvaluatedBatch], None], Callable[[float], float]]] = {
    "accuracy": (_accuracy, float),
    "perplexity": (_perplexity, lambda mean: math.exp(mean) if not mean > LARGEST_EXPONENT else math.inf),
    "mse": (_squared_error, float),
    "cosine": (_cosine, float),
}


def count(metric: str, tally: MetricSums, batch: EvaluatedBatch) -> None:
    """Add a batch to the tally of a metric; raise `BadData` if outputs and labels do not fit the metric."""
    METRICS[metric][0](tally, batch)


def result(metric: str, tally: MetricSums) -> tuple[float, float]:
    """Return the metric of eager and of the optimized model: the mean, or for perplexity its exponential."""
    if not tally.counted:
        raise BadData(
            f"no label is left for the {metric}: all are ignored", fix=f"give labels other than {IGNORED_LABEL}"
        )
    finish = METRICS[metric][1]
    return finish(tally.before / tally.counted), finish(tally.after / tally.counted)


def _labels(batch: EvaluatedBatch) -> torch.Tensor:
    if batch.labels is None or batch.labels.is_floating_point():
        raise BadData("the `labels` in the file are not classes", fix="give integers as `labels`")
    return batch.labels[:, 1:] if batch.causal else batch.labels


def _logits(leaves: Leaves, batch: EvaluatedBatch) -> torch.Tensor:
    """Return the logits for each label; a causal model's logits are for the next position.

    A model that finds answers has logits for two labels: the first and the last token, [batch, 2, tokens].
    """
    logits = leaves.tensors.get("logits")
    if logits is None and leaves.tensors.keys() >= set(SPAN_LOGITS):
        return torch.stack([leaves.tensors[name] for name in SPAN_LOGITS], dim=1).double()
    if logits is None:
        raise BadData(
            "the model returns no `logits`, which the metric needs", fix="use --metric cosine or another --task"
        )
    return (logits[:, :-1] if batch.causal else logits).double()


def _fit_labels(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return logits with the classes in the last dimension; segmentation logits are resized to the labels' size."""
    if logits.ndim == 4 and labels.ndim == 3:
        size = (int(labels.shape[1]), int(labels.shape[2]))
        logits = torch.nn.functional.interpolate(logits, size=size, mode="bilinear").movedim(1, -1)
    if logits.shape[:-1] != labels.shape:
        raise BadData(
            f"`labels` have the shape {list(labels.shape)}, which does not fit the logits, {list(logits.shape)}",
            fix="give a label for each sample, or for each token or pixel if the model classifies these",
        )
    return logits


def _squared_errors(leaves: Leaves, labels: torch.Tensor | None) -> torch.Tensor:
    predicted = next((leaves.tensors[name] for name in NUMBER_OUTPUTS if name in leaves.tensors), None)
    if predicted is None or labels is None:
        raise BadData(
            "mse needs `labels`, and a model that returns `predicted_depth` or `logits`",
            fix="use --metric cosine or another --task",
        )
    if predicted.ndim == labels.ndim + 1 and predicted.shape[-1] == 1:
        predicted = predicted.squeeze(-1)
    if predicted.shape != labels.shape:
        raise BadData(
            f"`labels` have the shape {list(labels.shape)}, but the model predicts {list(predicted.shape)}",
            fix="give a number for each prediction",
        )
    return (predicted.double() - labels.double()).square()


def _loss(logits: torch.Tensor, labels: torch.Tensor) -> float:
    flat = _fit_labels(logits, labels).flatten(0, -2)
    return float(torch.nn.functional.cross_entropy(flat, labels.flatten(), ignore_index=IGNORED_LABEL, reduction="sum"))


def _embedding(leaves: Leaves, mask: torch.Tensor | None) -> torch.Tensor:
    """Return one vector for each sample: the pooled vector, or the mean over the tokens without padding.

    If a model returns none of these, the vector has all numbers of its first result.
    """
    embedding = next((leaves.tensors[name] for name in EMBEDDINGS if name in leaves.tensors), None)
    if embedding is None or embedding.ndim < 2:
        return _first_result(leaves).double().flatten(1)
    vectors = embedding.double()
    if vectors.ndim == 2:
        return vectors
    vectors = vectors.flatten(2) if vectors.ndim > 3 else vectors
    if mask is None or mask.shape != vectors.shape[:2]:
        return vectors.mean(1)
    weights = mask.double().unsqueeze(-1)
    return (vectors * weights).sum(1) / weights.sum(1).clamp(min=1.0)


def _first_result(leaves: Leaves) -> torch.Tensor:
    results = (
        tensor for name, tensor in leaves.tensors.items() if name.partition(".")[0] not in (LOSS, *NON_RESULT_OUTPUTS)
    )
    numbers = next((tensor for tensor in results if tensor.is_floating_point() and tensor.ndim > 1), None)
    if numbers is None:
        raise BadData("the model returns no numbers to compare", fix="use another --metric or another --task")
    return numbers
