"""Comparison of a measurement with an earlier measurement, for continuous integration.

The comparison uses the speed-up of each candidate over the first candidate (eager), not seconds. A speed-up is a ratio
of two times from one process, so the clock frequency and the load of the machine cancel out. Other hardware does not
cancel out, so a baseline from another machine is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError as Malformed

from thunder_core.foundation.errors import BadOption, SlowerThanBaseline, UsageError
from thunder_core.foundation.storage.file import write_atomically
from thunder_core.foundation.storage.plain_file import read_plain, reason_of
from thunder_core.workflow.benchmark.report import BenchmarkCandidate, BenchmarkFacts, BenchmarkReport, Interval
from thunder_core.workflow.benchmark.suite import BenchmarkSuite

Key = tuple[tuple[str, str], ...]

MAX_BYTES = 64 << 20  # the largest file of measurements
FIX_MEASURE_AGAIN = (
    "measure a new baseline with `thunder bench --out FILE.json` on this machine, with this version and these options"
)


class Comparison(BenchmarkFacts):
    """The speed-ups of one candidate in one configuration, in the current measurement and in the baseline."""

    configuration: dict[str, str]
    candidate: str
    speedup: Interval
    baseline: Interval
    slowdown: float
    """The baseline's speed-up divided by the current one, minus 1; 0.05 for a candidate that is now 5% slower."""
    too_slow: bool
    within_noise: bool
    """Whether the two confidence intervals overlap."""

    def __str__(self) -> str:
        where = " ".join(f"{key}={value}" for key, value in self.configuration.items())
        now, then = (f"{i.value:.3f}x [{i.low:.3f}, {i.high:.3f}]" for i in (self.speedup, self.baseline))
        percent = f"{abs(self.slowdown):.1%}"
        change = "unchanged" if percent == "0.0%" else f"{percent} {'slower' if self.slowdown > 0 else 'faster'}"
        return f"{self.candidate}{f' ({where})' if where else ''}: {now}, was {then}: {change}"


def fraction_of(text: str) -> float:
    """Return 0.05 for `5%`; raise BadOption for text that is not a percentage of 0 or more."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", text)
    if match is None:
        raise BadOption(f"--fail-above is {text!r}, which is not a percentage", fix="write it as --fail-above 5%")
    return float(match[1]) / 100


def write_suite(suite: BenchmarkSuite, path: Path) -> None:
    """Write measurements atomically into a file that `read_suite` reads. Raises OSError."""
    write_atomically(path, suite.model_dump_json(indent=2) + "\n")


def read_suite(path: Path, option: str = "--baseline ") -> BenchmarkSuite:
    """Read the measurements in a file; raise BadOption if it cannot be read.

    `option` is the option's name with a space, which messages print before the path.
    """
    try:
        return BenchmarkSuite.model_validate_json(read_plain(path, MAX_BYTES).decode("utf-8-sig"))
    except OSError as error:
        raise BadOption(f"{option}{path} {reason_of(error)}", fix="name a file that can be read") from error
    except (Malformed, UnicodeDecodeError) as error:
        raise BadOption(
            f"{option}{path} is not a measurement that this version can read: {_first_error(error)}",
            fix=FIX_MEASURE_AGAIN,
        ) from error


def _first_error(error: Malformed | UnicodeDecodeError) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8 text"
    detail = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in detail["loc"])
    return f"{where}: {detail['msg']}" if where else detail["msg"]


def compare_with_baseline(current: BenchmarkSuite, baseline: BenchmarkSuite, fail_above: float) -> list[Comparison]:
    """Compare every candidate except the first, in each current configuration, with the baseline.

    `fail_above` is a fraction: 0.05 marks candidates with a slowdown of more than 5% as too slow. Raises BadOption if
    the baseline lacks a configuration or candidate, has another first candidate, or was measured on another machine.
    """
    earlier = {_key(report.configuration): report for report in baseline.measured}
    return [
        _compare(report, candidate, _same_candidate(candidate, _matching_report(report, earlier)), fail_above)
        for report in current.measured
        for candidate in report.candidates[1:]
    ]


def check_against_baseline(current: BenchmarkSuite, baseline: BenchmarkSuite, fail_above: float) -> list[Comparison]:
    """Compare with a baseline; raise `SlowerThanBaseline`, with all comparisons as `rows`, if any is too slow.

    Raises BadOption like `compare_with_baseline`, and if the current measurement has only one candidate.
    """
    rows = compare_with_baseline(current, baseline, fail_above)
    if not rows:
        raise BadOption(
            f"nothing can be compared with the baseline: the measurement only has {current.reports[0].first.name}",
            fix="measure at least one more contender",
        )
    slow = [row for row in rows if row.too_slow]
    if not slow:
        return rows
    noise_hint = " All differences may be noise: more --runs narrow the intervals."
    noise = noise_hint if all(row.within_noise for row in slow) else ""
    error = SlowerThanBaseline(
        f"{len(slow)} of {len(rows)} measurements are more than {100 * fail_above:g}% slower than in the baseline, "
        f"relative to {current.reports[0].first.name}: {'; '.join(map(str, slow))}",
        fix=f"find the change that made the model slower, or measure a new baseline if the change is intended.{noise}",
    )
    error.rows = tuple(rows)
    raise error


def _compare(
    report: BenchmarkReport, candidate: BenchmarkCandidate, earlier: BenchmarkCandidate, fail_above: float
) -> Comparison:
    slowdown = earlier.speedup.value / candidate.speedup.value - 1
    return Comparison(
        configuration=report.configuration,
        candidate=candidate.name,
        speedup=candidate.speedup,
        baseline=earlier.speedup,
        slowdown=slowdown,
        too_slow=slowdown > fail_above,
        within_noise=candidate.speedup.overlaps(earlier.speedup),
    )


def _key(configuration: Mapping[str, str]) -> Key:
    return tuple(sorted(configuration.items()))


def _matching_report(report: BenchmarkReport, earlier: Mapping[Key, BenchmarkReport]) -> BenchmarkReport:
    match = earlier.get(_key(report.configuration))
    if match is None:
        configuration = " ".join(f"{key}={value}" for key, value in report.configuration.items())
        raise _mismatch_error(f"has no measurement of {configuration or 'an unnamed configuration'}")
    if (match.machine, match.device) != (report.machine, report.device):
        here = f"this machine is {report.machine} ({report.device})"
        raise _mismatch_error(f"was measured on {match.machine} ({match.device}), but {here}")
    if match.first.name != report.first.name:
        raise _mismatch_error(
            f"compares with {match.first.name}, but this measurement compares with {report.first.name}"
        )
    return match


def _same_candidate(candidate: BenchmarkCandidate, report: BenchmarkReport) -> BenchmarkCandidate:
    match = next((measured for measured in report.candidates if measured.name == candidate.name), None)
    if match is None:
        raise _mismatch_error(f"has no contender {candidate.name!r}")
    return match


def _mismatch_error(what: str) -> UsageError:
    return BadOption(f"the baseline {what}", fix=FIX_MEASURE_AGAIN)
