"""Distances equal those that torch computes on whole tensors, for every block size."""

from __future__ import annotations

import math

import pytest
import torch

from thunder_core.workflow.validation import distance, language
from thunder_core.workflow.validation.distance import ZERO_ERRORS, measure_distance
from thunder_core.workflow.validation.language import has_logits, measure_language


@pytest.fixture(params=[1 << 22, 64])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Compute once in a single block and once in many."""
    monkeypatch.setattr(distance, "BLOCK", request.param)
    return int(request.param)


def noisy(reference: torch.Tensor, size: float, seed: int) -> torch.Tensor:
    """The reference in float32 with noise of a given size."""
    noise = torch.randn(reference.shape, generator=torch.Generator().manual_seed(seed), dtype=reference.dtype)
    return (reference + size * noise).float()


def normal(*shape: int) -> torch.Tensor:
    """A seeded reference."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)


def test_errors_are_measured_against_the_reference(block: int) -> None:
    reference = normal(6, 5, 16)
    optimized, eager = noisy(reference, 1e-2, 1), noisy(reference, 1e-3, 2)
    found = measure_distance(optimized, eager, reference)
    for errors, values in ((found.optimized, optimized), (found.eager, eager)):
        expected = (values.double() - reference).abs().flatten()
        assert errors.maximum == pytest.approx(expected.max().item())
        assert errors.mean == pytest.approx(expected.mean().item())
        if block > expected.numel():
            assert errors.median == pytest.approx(expected.median().item(), rel=1e-2)
            assert errors.p99 == pytest.approx(expected.quantile(0.99).item())
        assert errors.median < errors.p99 <= errors.maximum
    cosine = torch.nn.functional.cosine_similarity(optimized.double().flatten(), reference.flatten(), dim=0)
    assert found.cosine == pytest.approx(cosine.item(), abs=1e-12)
    assert found.scale == reference.abs().max().item()
    assert found.exact_values_agree


def test_integers_are_compared_with_eager() -> None:
    eager = torch.tensor([1, 2, 3])
    assert measure_distance(eager.clone(), eager, eager.double()).optimized == ZERO_ERRORS
    found = measure_distance(torch.tensor([1, 2, 5]), eager, eager.double())
    assert (found.exact_values_agree, found.optimized.maximum, found.eager) == (False, 2.0, ZERO_ERRORS)
    assert not measure_distance(torch.tensor([True]), torch.tensor([False]), torch.tensor([False])).exact_values_agree


def test_huge_integers_that_are_equal_as_doubles_differ() -> None:
    eager = torch.tensor([2**60])
    assert not measure_distance(eager + 1, eager, eager).exact_values_agree


@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf, torch.finfo(torch.float32).min])
def test_non_finite_values_must_be_in_the_same_places(special: float) -> None:
    reference = normal(4, 4)
    eager = reference.float()
    eager[1, 2] = special
    same = measure_distance(eager.clone(), eager, reference)
    assert same.exact_values_agree
    assert math.isfinite(same.optimized.maximum)
    assert same.optimized.maximum < 1e-6
    assert not measure_distance(reference.float(), eager, reference).exact_values_agree
    assert not measure_distance(torch.full_like(eager, special), eager, reference).exact_values_agree


def test_infinities_of_either_sign_are_distinguished() -> None:
    eager = torch.tensor([math.inf])
    assert not measure_distance(-eager, eager, eager.double()).exact_values_agree


@pytest.mark.parametrize("sign", [1, -1])
def test_an_infinity_is_not_the_largest_number_that_eager_has(sign: int) -> None:
    """In float16 a result that saturates in eager and overflows in the optimized model does not agree."""
    eager = torch.tensor([1.0, sign * torch.finfo(torch.float16).max], dtype=torch.float16)
    overflown = torch.tensor([1.0, sign * math.inf], dtype=torch.float16)
    assert measure_distance(eager.clone(), eager, eager.double()).exact_values_agree
    assert not measure_distance(overflown, eager, eager.double()).exact_values_agree
    assert not measure_distance(eager, overflown, eager.double()).exact_values_agree


def test_quantiles_cover_all_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample of every n-th element would read the same columns of each row."""
    monkeypatch.setattr(distance, "BLOCK", 1 << 12)
    reference = torch.zeros(1 << 9, 64, dtype=torch.float64)
    wrong = reference.float()
    wrong[:, 1::2] = 1.0
    found = measure_distance(wrong, reference.float(), reference).optimized
    assert (found.mean, found.p99) == (0.5, 1.0)
    assert measure_distance(wrong, reference.float(), reference).optimized == found


def test_empty_scalar_and_complex_tensors() -> None:
    empty = torch.zeros(0, 4)
    assert measure_distance(empty, empty, empty.double()).optimized == ZERO_ERRORS
    scalar = torch.tensor(2.0)
    assert measure_distance(scalar + 1, scalar, scalar.double()).optimized.maximum == 1.0
    turned = torch.tensor([1 + 1j])
    assert measure_distance(turned * 1j, turned, turned.to(torch.complex128)).optimized.maximum == 2.0


def test_divergence_matches_torch(block: int) -> None:
    reference = normal(3, 4, 32)
    optimized, eager = noisy(reference, 0.3, 1), noisy(reference, 1e-4, 2)
    found = measure_language(optimized, eager, reference)
    expected = torch.nn.functional.kl_div(
        optimized.double().log_softmax(-1).flatten(0, 1),
        reference.log_softmax(-1).flatten(0, 1),
        log_target=True,
        reduction="batchmean",
    )
    assert found.kl == pytest.approx(expected.item())
    assert found.eager_kl < 1e-6
    assert block


def test_positions_that_rounding_decides_do_not_count_against_top1() -> None:
    reference = torch.tensor([[0.0, 1.0], [0.0, 1e-4], [1.0, 0.0], [3.0, 0.0]], dtype=torch.float64)
    eager = reference.float() + torch.tensor([[0.0, 0.0], [1e-3, 0.0], [0.0, 0.0], [0.0, 0.0]])
    flipped_where_undecided = reference.float()
    flipped_where_undecided[1] = torch.tensor([1.0, 0.0])
    found = measure_language(flipped_where_undecided, eager, reference)
    assert (found.top1, found.undecided) == (1.0, 0.25)
    flipped_where_clear = reference.float()
    flipped_where_clear[3] = torch.tensor([0.0, 3.0])
    assert measure_language(flipped_where_clear, eager, reference).top1 == 0.75


def test_impossible_tokens_and_missing_positions_add_nothing() -> None:
    reference = torch.tensor([[0.0, 1.0, -math.inf], [math.nan, 0.0, 0.0]], dtype=torch.float64)
    found = measure_language(reference.float(), reference.float(), reference)
    assert (found.kl, found.top1) == (0.0, 1.0)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_no_position_with_a_distribution_means_no_measurement(value: float) -> None:
    logits = torch.full((2, 3), value)
    assert measure_language(logits, logits, logits.double()) is None
    logits[1] = torch.tensor([0.0, 1.0, 2.0])
    other = logits.clone()
    other[1] = torch.tensor([2.0, 1.0, 0.0])
    found = measure_language(other, logits, logits.double())
    assert (found.top1, found.eager_kl) == (0.0, 0.0)
    assert found.kl > 1.0
    assert measure_language(*[torch.zeros(0, 3)] * 3) is None


def test_logits_are_known_by_name_and_shape() -> None:
    assert has_logits(language.LOGITS, torch.zeros(1, 2, 3))
    assert not has_logits("last_hidden_state", torch.zeros(1, 2, 3))
    assert not has_logits(language.LOGITS, torch.zeros(3))
    assert not has_logits(language.LOGITS, torch.zeros(3, 3, dtype=torch.int64))
