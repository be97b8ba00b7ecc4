"""The judgement covers every quantity on the worst input, and names the smallest tolerance that passes."""

from __future__ import annotations

import math

import pytest

from thunder_core.foundation.errors import OutOfTolerance
from thunder_core.passes.recipe import Tolerance
from thunder_core.workflow.validation.degenerate_outputs import Finiteness
from thunder_core.workflow.validation.distance import Distance
from thunder_core.workflow.validation.report import Errors, LanguageReport, ValidationReport
from thunder_core.workflow.validation.verdict import Measurement, judge, require_passed, smallest_times_eager


def errors(maximum: float, mean: float) -> Errors:
    """Errors whose quantiles follow from maximum and mean."""
    return Errors(maximum=maximum, mean=mean, median=mean, p99=maximum)


EAGER = errors(1e-3, 1e-4)
NUMBERS = Finiteness(elements=6, nan=0, infinite=0, finite_in_eager=True, all_zero=False)
LANGUAGE = LanguageReport(kl=2e-4, eager_kl=1e-4, top1=1.0, undecided=0.1)


def measurement(optimized: Errors, *, same: bool = True, language: LanguageReport | None = None) -> Measurement:
    """An output whose reference is at most 1 in magnitude."""
    return Measurement("float32", (2, 3), Distance(optimized, EAGER, 1.0, 0.9, same), language, NUMBERS)


def report_of(*measurements: Measurement, tolerance: Tolerance) -> ValidationReport:
    """A report of one output."""
    output = judge("y", measurements, tolerance)
    return ValidationReport(
        passed=output.passed,
        inputs=len(measurements),
        reference_dtype="float64",
        tolerance=tolerance,
        outputs=(output,),
        notes=(),
    )


def test_a_drift_below_the_largest_error_fails() -> None:
    """A check of the largest error alone would allow every value to be as wrong as eager's worst."""
    output = judge("y", [measurement(errors(1e-3, 9e-4))], Tolerance(floor=0.0))
    assert not output.passed
    assert output.smallest_tolerance == pytest.approx(9.0)
    assert output.failures == ("its mean error is 0.0009; eager's own error is 0.0001, and 0.0002 is allowed",)


@pytest.mark.parametrize(
    ("floor", "smallest"),
    [(0.0, 3.0), (1e-3, 2.0), (3e-3, 0.0), (1.0, 0.0)],
)
def test_the_floor_is_relative_to_the_largest_magnitude(floor: float, smallest: float) -> None:
    distance = measurement(errors(3e-3, 1e-4)).distance
    assert smallest_times_eager(distance, floor) == pytest.approx(smallest)


def test_exact_eager_results_have_no_sufficient_multiple() -> None:
    distance = Distance(errors(1e-9, 0.0), errors(0.0, 0.0), 0.0, 1.0, True)
    assert math.isinf(smallest_times_eager(distance, 1e-6))


def test_the_worst_input_decides_and_is_reported() -> None:
    output = judge("y", [measurement(errors(x, 1e-4)) for x in (3e-3, 8e-3, 1e-4)], Tolerance(floor=0.0))
    assert output.optimized.maximum == 8e-3
    assert output.smallest_tolerance == pytest.approx(8.0)
    assert output.failures == ("its largest error is 0.008; eager's own error is 0.001, and 0.002 is allowed",)


def test_the_figures_belong_to_a_single_input() -> None:
    """The maximum of each figure over all inputs could show a failure as well within the tolerance."""
    wrong = Measurement(
        "float32", (2, 3), Distance(errors(1e-3, 1e-3), errors(1e-4, 1e-4), 1.0, 0.9, True), None, NUMBERS
    )
    rough = Measurement(
        "float32", (2, 3), Distance(errors(1e-2, 1e-2), errors(1e-2, 1e-2), 9.0, 0.9, True), None, NUMBERS
    )
    report = report_of(rough, wrong, rough, tolerance=Tolerance(floor=0.0))
    (output,) = report.outputs
    assert (output.optimized, output.eager, output.scale) == (wrong.distance.optimized, wrong.distance.eager, 1.0)
    assert output.optimized.maximum > report.allowed_error(output) == pytest.approx(2e-4)
    language = [LANGUAGE.model_copy(update={"kl": kl, "eager_kl": eager}) for kl, eager in ((3e-3, 1e-3), (9e-3, 9e-3))]
    told = judge("y", [measurement(EAGER, language=figures) for figures in language], Tolerance()).language
    assert told is not None
    assert (told.kl, told.eager_kl) == (3e-3, 1e-3)


@pytest.mark.parametrize(
    ("language", "words"),
    [
        ({"kl": 2e-3}, "KL divergence is 0.002 nats; eager's is 0.0001, and 0.001 more is allowed"),
        ({"top1": 0.97}, "top-1 agreement is 97.00%, and 99.00% is required"),
    ],
)
def test_language_models_are_judged_by_their_next_tokens(language: dict[str, float], words: str) -> None:
    fine = measurement(EAGER, language=LANGUAGE)
    assert judge("logits", [fine], Tolerance()).passed
    output = judge("logits", [fine, measurement(EAGER, language=LANGUAGE.model_copy(update=language))], Tolerance())
    assert not output.passed
    assert words in output.failures[0]
    assert output.smallest_tolerance <= 1.0


def test_the_error_holds_the_report_and_the_advice() -> None:
    report = report_of(measurement(errors(3.456e-3, 1e-4)), tolerance=Tolerance(floor=0.0))
    with pytest.raises(OutOfTolerance) as caught:
        require_passed(report)
    assert caught.value.report is report
    assert caught.value.fix.endswith("a tolerance of times_eager=3.46 passes")
    require_passed(report_of(measurement(EAGER), tolerance=Tolerance()))


def test_no_multiple_is_advised_if_none_helps() -> None:
    report = report_of(measurement(EAGER, same=False), tolerance=Tolerance())
    with pytest.raises(OutOfTolerance) as caught:
        require_passed(report)
    assert "times_eager" not in caught.value.fix
    assert report.outputs[0].failures == ("its integers, NaN or infinities differ from eager's",)
