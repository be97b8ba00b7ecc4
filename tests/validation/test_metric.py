"""Metrics equal those computed directly in PyTorch over all batches together."""

from __future__ import annotations

import math

import pytest
import torch

from thunder_core.foundation.errors import BadData
from thunder_core.workflow.validation.leaves import Leaves
from thunder_core.workflow.validation.metric import EvaluatedBatch, MetricSums, count, result

GENERATOR = torch.Generator().manual_seed(0)
LOGITS = torch.randn(6, 5, 7, generator=GENERATOR)
OTHER = LOGITS + 0.5 * torch.randn(6, 5, 7, generator=GENERATOR)
LABELS = torch.randint(0, 7, (6, 5), generator=GENERATOR)
LABELS[0, 2:] = -100


def over_batches(
    metric: str, eager: Leaves, ours: Leaves, labels: torch.Tensor | None, **more: object
) -> tuple[float, float]:
    """The metric over three batches of two samples."""
    tally = MetricSums()
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


def test_cosine_uses_means_over_tokens_without_padding() -> None:
    mask = torch.ones(6, 5, dtype=torch.int64)
    mask[:, 3:] = 0
    spoiled = LOGITS.clone()
    spoiled[:, 3:] = 1e9
    eager, ours = Leaves({"last_hidden_state": LOGITS}), Leaves({"last_hidden_state": spoiled})
    assert over_batches("cosine", eager, ours, None, mask=mask) == pytest.approx((1.0, 1.0))
    ours = Leaves({"pooler_output": OTHER[:, 0]})
    expected = torch.nn.functional.cosine_similarity(LOGITS[:, 0], OTHER[:, 0], dim=-1).mean().item()
    assert over_batches("cosine", Leaves({"pooler_output": LOGITS[:, 0]}), ours, None)[1] == pytest.approx(expected)


def test_accuracy_of_scores_is_the_mean_score_of_the_largest_logit() -> None:
    scores = torch.rand(6, 7, generator=GENERATOR)
    found = over_batches("accuracy", Leaves({"logits": LOGITS[:, 0]}), Leaves({"logits": OTHER[:, 0]}), scores)
    expected = [scores[range(6), logits[:, 0].argmax(-1)].mean().item() for logits in (LOGITS, OTHER)]
    assert found == pytest.approx(tuple(expected))


def test_accuracy_of_answers_counts_their_first_and_last_tokens() -> None:
    answers = Leaves({"start_logits": LOGITS[:, 0], "end_logits": LOGITS[:, 1]})
    labels = torch.stack([LOGITS[:, 0].argmax(-1), (LOGITS[:, 1].argmax(-1) + 1) % 7], dim=1)
    assert over_batches("accuracy", answers, answers, labels) == (0.5, 0.5)


def test_accuracy_of_a_segmentation_counts_the_pixels_of_the_labels() -> None:
    logits = torch.randn(6, 3, 4, 4, generator=GENERATOR)
    larger = torch.nn.functional.interpolate(logits, size=(8, 8), mode="bilinear")
    labels = larger.argmax(1)
    labels[:, :, 4:] = -100
    leaves = Leaves({"logits": logits})
    assert over_batches("accuracy", leaves, leaves, labels) == (1.0, 1.0)
    wrong = torch.where(labels == -100, labels, (labels + 1) % 3)
    assert over_batches("accuracy", leaves, leaves, wrong) == (0.0, 0.0)


def test_squared_error_is_the_mean_over_all_numbers() -> None:
    labels = torch.randn(6, 5, generator=GENERATOR)
    depths = [Leaves({"predicted_depth": logits[..., 0]}) for logits in (LOGITS, OTHER)]
    expected = [(logits[..., 0] - labels).square().mean().item() for logits in (LOGITS, OTHER)]
    assert over_batches("mse", *depths, labels) == pytest.approx(tuple(expected))
    numbers = [Leaves({"logits": logits[:, 0, :1]}) for logits in (LOGITS, OTHER)]
    expected = [(logits[:, 0, 0] - labels[:, 0]).square().mean().item() for logits in (LOGITS, OTHER)]
    assert over_batches("mse", *numbers, labels[:, 0]) == pytest.approx(tuple(expected))


def test_cosine_uses_the_first_result_without_embeddings() -> None:
    cache = {"loss": torch.ones(6, 2), "past_key_values.0": torch.ones(6, 2)}
    eager, ours = (Leaves(cache | {"reconstruction": values}) for values in (LOGITS, OTHER))
    expected = torch.nn.functional.cosine_similarity(LOGITS.flatten(1), OTHER.flatten(1)).mean().item()
    assert over_batches("cosine", eager, ours, None)[1] == pytest.approx(expected)


def test_metrics_that_cannot_be_measured_are_refused() -> None:
    logits = Leaves({"logits": LOGITS})
    cases = {
        "`labels` in the file are": ("accuracy", logits, None),
        "are not classes": ("accuracy", logits, LABELS.float()),
        "no `logits`": ("perplexity", Leaves({"loss": LOGITS}), LABELS),
        "`labels` have the shape": ("accuracy", logits, LABELS[:, :2]),
        "mse needs": ("mse", logits, None),
        "the model predicts": ("mse", logits, LABELS.float()),
        "no label is left": ("accuracy", logits, torch.full_like(LABELS, -100)),
        "no numbers to compare": ("cosine", Leaves({"loss": LOGITS}), None),
    }
    for words, (metric, leaves, labels) in cases.items():
        with pytest.raises(BadData, match=words):
            over_batches(metric, leaves, leaves, labels)


def test_a_model_that_is_sure_of_the_wrong_has_no_finite_perplexity() -> None:
    sure = torch.zeros(6, 5, 7)
    sure[..., 0] = 1e6
    leaves = Leaves({"logits": sure})
    assert over_batches("perplexity", leaves, leaves, torch.ones(6, 5, dtype=torch.int64)) == (math.inf, math.inf)
