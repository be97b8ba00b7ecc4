"""Metrics of a model on real samples: accuracy, perplexity, and the cosine similarity of embeddings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from thunder_core.foundation.errors import BadData
from thunder_core.workflow.validation.leaves import Leaves

IGNORED = -100  # the label that torch.nn.functional.cross_entropy leaves out
LARGEST_EXPONENT = 709.0  # the largest integer whose exponential is finite in float64
EMBEDDINGS = ("sentence_embedding", "pooler_output", "text_embeds", "image_embeds", "last_hidden_state", "logits")


@dataclass(frozen=True)
class EvaluatedBatch:
    """The outputs of eager and of the optimized model for a batch, its labels, and the mask of its tokens.

    If `causal` is set, the logits at a position are for the next token.
    """

    eager: Leaves
    ours: Leaves
    labels: torch.Tensor | None
    mask: torch.Tensor | None
    causal: bool = False


@dataclass
class Tally:
    """The sums of a metric over the batches so far, for eager (`before`) and the optimized model (`after`)."""

    counted: int = 0
    before: float = 0.0
    after: float = 0.0

    def add(self, counted: int, before: float, after: float) -> None:
        """Add a batch."""
        self.counted += counted
        self.before += before
        self.after += after


def _accuracy(tally: Tally, batch: EvaluatedBatch) -> None:
    """Add the number of positions whose largest logit is the label's."""
    wanted = _labels(batch)
    counted = wanted != IGNORED
    choices = (_reshape_labels(_logits(leaves, batch), wanted).argmax(-1) for leaves in (batch.eager, batch.ours))
    before, after = (float((choice == wanted)[counted].sum()) for choice in choices)
    tally.add(int(counted.sum()), before, after)


def _perplexity(tally: Tally, batch: EvaluatedBatch) -> None:
    """Add the negative log-likelihoods of the labels, in nats."""
    wanted = _labels(batch)
    before, after = (_loss(_logits(leaves, batch), wanted) for leaves in (batch.eager, batch.ours))
    tally.add(int((wanted != IGNORED).sum()), before, after)


def _cosine(tally: Tally, batch: EvaluatedBatch) -> None:
    """Add the cosine similarities of eager's embeddings to themselves, and to the optimized embeddings."""
    eager, ours = _embedding(batch.eager, batch.mask), _embedding(batch.ours, batch.mask)
    before, after = (
        float(torch.nn.functional.cosine_similarity(eager, embedding, dim=-1).sum()) for embedding in (eager, ours)
    )
    tally.add(len(eager), before, after)


METRICS: Mapping[str, tuple[Callable[[Tally, EvaluatedBatch], None], Callable[[float], float]]] = {
    "accuracy": (_accuracy, float),
    "perplexity": (_perplexity, lambda mean: math.exp(mean) if not mean > LARGEST_EXPONENT else math.inf),
    "cosine": (_cosine, float),
}


def count(metric: str, tally: Tally, batch: EvaluatedBatch) -> None:
    """Add a batch to the tally of a metric; raise `BadData` if outputs and labels do not fit the metric."""
    METRICS[metric][0](tally, batch)


def result(metric: str, tally: Tally) -> tuple[float, float]:
    """Return the metric before and after: the mean, or for perplexity the exponential of the mean."""
    if not tally.counted:
        raise BadData(f"no label is left for the {metric}: all are ignored", fix=f"give labels other than {IGNORED}")
    finish = METRICS[metric][1]
    return finish(tally.before / tally.counted), finish(tally.after / tally.counted)


def _labels(batch: EvaluatedBatch) -> torch.Tensor:
    if batch.labels is None or batch.labels.is_floating_point():
        raise BadData("the `labels` in the file are not classes", fix="give integers as `labels`")
    return batch.labels[:, 1:] if batch.causal else batch.labels


def _logits(leaves: Leaves, batch: EvaluatedBatch) -> torch.Tensor:
    """Return the logits for each label; a causal model's logits are for the next position."""
    logits = leaves.tensors.get("logits")
    if logits is None:
        raise BadData(
            "the model returns no `logits`, which the metric needs", fix="use --metric cosine or another --task"
        )
    return (logits[:, :-1] if batch.causal else logits).double()


def _reshape_labels(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    if logits.shape[:-1] != labels.shape:
        raise BadData(
            f"`labels` have the shape {list(labels.shape)}, which does not fit the logits, {list(logits.shape)}",
            fix="give a label for each sample, or for each token if the model classifies tokens",
        )
    return logits


def _loss(logits: torch.Tensor, labels: torch.Tensor) -> float:
    flat = _reshape_labels(logits, labels).flatten(0, -2)
    return float(torch.nn.functional.cross_entropy(flat, labels.flatten(), ignore_index=IGNORED, reduction="sum"))


def _embedding(leaves: Leaves, mask: torch.Tensor | None) -> torch.Tensor:
    """Return one vector for each sample: the pooled vector, or the mean over the tokens without padding."""
    embedding = next((leaves.tensors[name] for name in EMBEDDINGS if name in leaves.tensors), None)
    if embedding is None or embedding.ndim < 2:
        raise BadData("the model returns no embeddings to compare", fix="use another --metric or another --task")
    vectors = embedding.double()
    if vectors.ndim == 2:
        return vectors
    vectors = vectors.flatten(2) if vectors.ndim > 3 else vectors
    if mask is None or mask.shape != vectors.shape[:2]:
        return vectors.mean(1)
    weights = mask.double().unsqueeze(-1)
    return (vectors * weights).sum(1) / weights.sum(1).clamp(min=1.0)
