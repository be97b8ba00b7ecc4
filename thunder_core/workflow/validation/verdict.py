"""The verdict of a validation: the measured errors of every input, compared with the recipe's tolerance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from thunder_core.foundation.errors import OutOfTolerance
from thunder_core.foundation.options.tolerance import Tolerance
from thunder_core.workflow.validation.degenerate_outputs import Finiteness, join
from thunder_core.workflow.validation.distance import Distance
from thunder_core.workflow.validation.report import LanguageReport, OutputReport, SizeReport, ValidationReport

BISECT_FIX = "leave out the recipe's transforms and executors one at a time to find the cause"
QUANTITIES = {"maximum": "largest", "p99": "99th percentile", "mean": "mean", "median": "median"}


@dataclass(frozen=True)
class Measurement:
    """The measurements of one output on one input."""

    dtype: str
    shape: tuple[int, ...]
    distance: Distance
    language: LanguageReport | None
    finiteness: Finiteness


def judge(name: str, measurements: Sequence[Measurement], tolerance: Tolerance) -> OutputReport:
    """Return the report of one output: its worst measurement, and all failures of its measurements."""
    worst_first = sorted(
        measurements, key=lambda measurement: _severity_key(measurement.distance, tolerance), reverse=True
    )
    worst = worst_first[0].distance
    failures: dict[str, str] = {}
    for measured in worst_first:
        failures = {**_failures(measured, tolerance), **failures}
    return OutputReport(
        name=name,
        dtype=measurements[0].dtype,
        shapes=tuple(dict.fromkeys(measurement.shape for measurement in measurements)),
        optimized=worst.optimized,
        eager=worst.eager,
        scale=worst.scale,
        cosine=min(measurement.distance.cosine for measurement in measurements),
        language=_worst_language(
            [measurement.language for measurement in measurements if measurement.language is not None]
        ),
        smallest_tolerance=smallest_times_eager(worst, tolerance.floor),
        passed=not failures,
        failures=tuple(failures.values()),
        **asdict(join([measurement.finiteness for measurement in measurements])),
    )


def judge_sizes(
    sizes: Sequence[str], measured: Mapping[str, Mapping[int, Measurement]], tolerance: Tolerance
) -> tuple[SizeReport, ...]:
    """Return the report of each size.

    `sizes` has the size of each input. `measured` has the measurements by output and by the number of the input. A
    state that calls change only on some inputs has measurements for these inputs only.
    """
    return tuple(_judge_size(size, sizes, measured, tolerance) for size in dict.fromkeys(sizes))


def _judge_size(
    size: str, sizes: Sequence[str], measured: Mapping[str, Mapping[int, Measurement]], tolerance: Tolerance
) -> SizeReport:
    indices = [index for index, input_size in enumerate(sizes) if input_size == size]
    of_size = {name: [results[index] for index in indices if index in results] for name, results in measured.items()}
    outputs = [judge(name, measurements, tolerance) for name, measurements in of_size.items() if measurements]
    worst = max(outputs, key=lambda output: (not output.passed, output.smallest_tolerance, output.optimized.maximum))
    return SizeReport(
        size=size,
        inputs=len(indices),
        output=worst.name,
        optimized=worst.optimized.maximum,
        eager=worst.eager.maximum,
        passed=all(output.passed for output in outputs),
    )


def smallest_times_eager(distance: Distance, floor: float) -> float:
    """Return the smallest multiple of eager's own errors with which, plus the floor, the optimized errors pass."""
    if not distance.exact_values_agree:
        return math.inf
    slack = floor * distance.scale
    return max(
        _needed_factor(getattr(distance.optimized, quantity), getattr(distance.eager, quantity), slack)
        for quantity in QUANTITIES
    )


def _needed_factor(optimized: float, eager: float, slack: float) -> float:
    if optimized <= slack:
        return 0.0
    return (optimized - slack) / eager if eager else math.inf


def _failures(measured: Measurement, tolerance: Tolerance) -> dict[str, str]:
    """Return the violations of the tolerance in words, by kind."""
    if not measured.distance.exact_values_agree:
        return {"exact values": "its integers, NaN or infinities differ from eager's"}
    failures = _error_failure(measured.distance, tolerance)
    return failures if measured.language is None else failures | _language_failures(measured.language, tolerance)


def _error_failure(distance: Distance, tolerance: Tolerance) -> dict[str, str]:
    slack = tolerance.floor * distance.scale
    for quantity, words in QUANTITIES.items():
        optimized, eager = getattr(distance.optimized, quantity), getattr(distance.eager, quantity)
        if _needed_factor(optimized, eager, slack) > tolerance.times_eager:
            allowed = tolerance.times_eager * eager + slack
            text = (
                f"its {words} error is {optimized:.3g}; eager's own error is {eager:.3g}, and {allowed:.3g} is allowed"
            )
            return {"error": text}
    return {}


def _language_failures(language: LanguageReport, tolerance: Tolerance) -> dict[str, str]:
    failures = {}
    if language.kl - language.eager_kl > tolerance.kl:
        allowed = f"eager's is {language.eager_kl:.3g}, and {tolerance.kl:.3g} more is allowed"
        failures["kl"] = f"its KL divergence is {language.kl:.3g} nats; {allowed}"
    if language.top1 < tolerance.top1:
        failures["top1"] = f"its top-1 agreement is {language.top1:.2%}, and {tolerance.top1:.2%} is required"
    return failures


def _severity_key(distance: Distance, tolerance: Tolerance) -> tuple[float, float]:
    """Return the sort key of a measurement: the smallest passing tolerance, and the used share of the tolerance."""
    allowed = tolerance.times_eager * distance.eager.maximum + tolerance.floor * distance.scale
    return smallest_times_eager(distance, tolerance.floor), distance.optimized.maximum / (allowed or 1.0)


def _worst_language(reports: Sequence[LanguageReport]) -> LanguageReport | None:
    """Return the worst divergence and the worst agreement, each with the values of its input."""
    if not reports:
        return None
    diverging = max(reports, key=lambda report: report.kl - report.eager_kl)
    disagreeing = min(reports, key=lambda report: report.top1)
    return disagreeing.model_copy(update={"kl": diverging.kl, "eager_kl": diverging.eager_kl})


def require_passed(report: ValidationReport) -> None:
    """Raise OutOfTolerance, with the report as its `report`, if any output failed."""
    if report.passed:
        return
    worst = report.worst
    failed = sum(not output.passed for output in report.outputs)
    failure_count = f" ({failed} of {len(report.outputs)} outputs failed)" if failed > 1 else ""
    sizes = [point.size for point in report.sizes if not point.passed]
    at_sizes = f", with inputs of {', '.join(sizes)}" if sizes else ""
    error = OutOfTolerance(
        f"`{worst.name}` differs from the {report.reference_dtype} reference by more than the recipe allows: "
        f"{'; '.join(worst.failures)}{failure_count}{at_sizes}",
        fix=_advice(worst, report.tolerance),
    )
    error.report = report
    raise error


def _advice(worst: OutputReport, tolerance: Tolerance) -> str:
    search = BISECT_FIX
    if math.isinf(worst.smallest_tolerance) or worst.smallest_tolerance <= tolerance.times_eager:
        return search
    enough = math.ceil(worst.smallest_tolerance * 100) / 100
    return f"{search}; if this error is acceptable, a tolerance of times_eager={enough:g} passes"
