"""Metrics equal those computed directly in PyTorch over all batches together."""

from __future__ import annotations

import math

import pytest
import torch

from thunder_core.foundation.errors import BadData
from thunder_core.workflow.validation.leaves import Leaves
from thunder_core.workflow.validation.metric import EvaluatedBatch, Tally, count, result

GENERATOR = torch.Generator().manual_seed(0)
LOGITS = torch.randn(6, 5, 7, generator=GENERATOR)
OTHER = LOGITS + 0.5 * torch.randn(6, 5, 7, generator=GENERATOR)
LABELS = torch.randint(0, 7, (6, 5), generator=GENERATOR)
LABELS[0, 2:] = -100


def over_batches(
    metric: str, eager: Leaves, ours: Leaves, labels: torch.Tensor | None, **more: object
) -> tuple[float, float]:
    """The metric over three batches of two samples."""
    tally = Tally()
    for first in range(0, 6, 2):
        part = slice(first, first + 2)
        pair = (Leaves({name: tensor[part] for name, tensor in leaves.tensors.items()}) for leaves in (eager, ours))
        mask = more.get("mask")
        batch = EvaluatedBatch(
            *pair,
            None if labels is None else labels[part],
            mask[part] if isinstance(mask, torch.Tensor) else None,
            causal=bool(more.get("causal")),
        )
        count(metric, tally, batch)
    return result(metric, tally)


@pytest.mark.parametrize("causal", [False, True])
def test_perplexity_is_the_exponential_of_the_mean_loss(causal: bool) -> None:
    found = over_batches("perplexity", Leaves({"logits": LOGITS}), Leaves({"logits": OTHER}), LABELS, causal=causal)
    for value, logits in zip(found, (LOGITS, OTHER), strict=True):
        given, wanted = (logits[:, :-1], LABELS[:, 1:]) if causal else (logits, LABELS)
        loss = torch.nn.functional.cross_entropy(given.flatten(0, 1).double(), wanted.flatten(), ignore_index=-100)
        assert value == pytest.approx(math.exp(loss.item()))


@pytest.mark.parametrize("causal", [False, True])
def test_accuracy_is_the_share_of_labels_that_are_met(causal: bool) -> None:
    found = over_batches("accuracy", Leaves({"logits": LOGITS}), Leaves({"logits": OTHER}), LABELS, causal=causal)
    wanted = LABELS[:, 1:] if causal else LABELS
    choices = [(scores[:, :-1] if causal else scores).argmax(-1) for scores in (LOGITS, OTHER)]
    expected = [((choice == wanted)[wanted != -100]).double().mean().item() for choice in choices]
    assert found == pytest.approx(tuple(expected))


def test_cosine_is_that_of_the_means_over_tokens_that_are_no_padding() -> None:
    mask = torch.ones(6, 5, dtype=torch.int64)
    mask[:, 3:] = 0
    spoiled = LOGITS.clone()
    spoiled[:, 3:] = 1e9
    eager, ours = Leaves({"last_hidden_state": LOGITS}), Leaves({"last_hidden_state": spoiled})
    assert over_batches("cosine", eager, ours, None, mask=mask) == pytest.approx((1.0, 1.0))
    ours = Leaves({"pooler_output": OTHER[:, 0]})
    expected = torch.nn.functional.cosine_similarity(LOGITS[:, 0], OTHER[:, 0], dim=-1).mean().item()
    assert over_batches("cosine", Leaves({"pooler_output": LOGITS[:, 0]}), ours, None)[1] == pytest.approx(expected)


def test_metrics_that_cannot_be_measured_are_refused() -> None:
    logits = Leaves({"logits": LOGITS})
    cases = {
        "`labels` in the file are": ("accuracy", logits, None),
        "are not classes": ("accuracy", logits, LABELS.float()),
        "no `logits`": ("perplexity", Leaves({"loss": LOGITS}), LABELS),
        "`labels` have the shape": ("accuracy", logits, LABELS[:, :2]),
        "no label is left": ("accuracy", logits, torch.full_like(LABELS, -100)),
        "no embeddings": ("cosine", Leaves({"loss": LOGITS}), None),
    }
    for words, (metric, leaves, labels) in cases.items():
        with pytest.raises(BadData, match=words):
            over_batches(metric, leaves, leaves, labels)


def test_a_model_that_is_sure_of_the_wrong_has_no_finite_perplexity() -> None:
    sure = torch.zeros(6, 5, 7)
    sure[..., 0] = 1e6
    leaves = Leaves({"logits": sure})
    assert over_batches("perplexity", leaves, leaves, torch.ones(6, 5, dtype=torch.int64)) == (math.inf, math.inf)
