"""Speed-ups are compared with a baseline, and only with a comparable one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from thunder_core.foundation.errors import BadOption, SlowerThanBaseline
from thunder_core.workflow.benchmark import (
    BenchmarkReport,
    BenchmarkSuite,
    check_against_baseline,
    compare_with_baseline,
    fraction_of,
    read_suite,
    write_suite,
)
from thunder_core.workflow.benchmark.statistics import describe_candidate

SPREAD = (0.98, 0.99, 1.0, 1.01, 1.02)


def suite(ratio: float, *, clock: float = 1.0, **changes: object) -> BenchmarkSuite:
    """A measurement in which the optimized model is `ratio` times as fast as eager."""
    eager = [clock * x for x in SPREAD]
    optimized = [clock * x / ratio for x in SPREAD]
    facts: dict[str, object] = {
        "machine": "a machine",
        "device": "cpu",
        "configuration": {"batch": "1", "seq": "128"},
        "runs": 5,
        "warmup": 1,
        "candidates": (
            describe_candidate("eager", eager, eager, None),
            describe_candidate("optimized", optimized, eager, None),
        ),
    }
    return BenchmarkSuite(thunder="0.1.0", reports=(BenchmarkReport(**{**facts, **changes}),))


def test_the_speedup_is_compared_and_not_the_clock() -> None:
    (row,) = compare_with_baseline(suite(1.5, clock=3.0), suite(1.5), 0.05)
    assert row.slowdown == pytest.approx(0.0)
    assert not row.too_slow
    assert row.within_noise


@pytest.mark.parametrize(("ratio", "too_slow"), [(1.6, False), (1.43, False), (1.42, True), (0.5, True)])
def test_speedup_that_dropped_more_than_allowed_is_too_slow(ratio: float, too_slow: bool) -> None:
    (row,) = compare_with_baseline(suite(ratio), suite(1.5), 0.05)
    assert row.too_slow == too_slow
    assert row.slowdown == pytest.approx(1.5 / ratio - 1)


def test_the_error_names_slower_rows_and_holds_all_rows() -> None:
    with pytest.raises(SlowerThanBaseline) as caught:
        check_against_baseline(suite(1.0), suite(1.5), fraction_of("5%"))
    text = str(caught.value)
    assert "1 of 1 measurements are more than 5% slower than in the baseline, relative to eager" in text
    assert "optimized (batch=1 seq=128): 1.000x [1.000, 1.000], was 1.500x [1.500, 1.500]: 50.0% slower" in text
    assert (caught.value.status, len(caught.value.rows)) == (5, 1)
    assert "noise" not in caught.value.fix
    assert check_against_baseline(suite(1.5), suite(1.5), 0.05)


@pytest.mark.parametrize(
    ("ratio", "change"),
    [(1.5, "unchanged"), (1.5001, "unchanged"), (1.4999, "unchanged"), (1.6, "6.2% faster"), (1.4, "7.1% slower")],
)
def test_row_names_the_change(ratio: float, change: str) -> None:
    (row,) = compare_with_baseline(suite(ratio), suite(1.5), 0.05)
    assert str(row).endswith(f": {change}")


def test_measurement_with_one_candidate_cannot_be_compared() -> None:
    alone = suite(1.5, candidates=suite(1.5).reports[0].candidates[:1])
    with pytest.raises(BadOption, match="nothing can be compared with the baseline: the measurement only has eager"):
        check_against_baseline(alone, suite(1.5), 0.05)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"machine": "another"}, "was measured on another"),
        ({"device": "cuda"}, r"\(cuda\)"),
        ({"configuration": {"batch": "2", "seq": "128"}}, "has no measurement of batch=1 seq=128"),
        ({"candidates": suite(1.0).reports[0].candidates[:1]}, "has no contender 'optimized'"),
        ({"candidates": suite(1.0).reports[0].candidates[1:]}, "compares with optimized"),
    ],
)
def test_baseline_that_is_not_comparable_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(BadOption, match=message) as caught:
        compare_with_baseline(suite(1.5), suite(1.5, **changes), 0.05)
    assert caught.value.status == 2


def test_a_suite_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    write_suite(suite(1.5), path)
    assert read_suite(path) == suite(1.5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data | {"schema_version": 2}, "schema_version: Input should be 1"),
        (lambda data: data | {"more": 1}, "more: Extra inputs are not permitted"),
        (lambda data: [data], "Input should be an object"),
    ],
)
def test_another_schema_is_refused(tmp_path: Path, change: object, message: str) -> None:
    path = tmp_path / "baseline.json"
    write_suite(suite(1.5), path)
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(BadOption, match=message):
        read_suite(path)


def with_seconds(data: dict[str, Any], seconds: Callable[[list[float]], list[float]]) -> dict[str, Any]:
    """The same suite with other times of its last candidate."""
    candidate = data["reports"][0]["candidates"][-1]
    candidate["seconds"] = seconds(candidate["seconds"])
    return data


@pytest.mark.parametrize(
    ("seconds", "message"),
    [
        (lambda times: times[:-1], "different numbers of rounds"),
        (lambda times: [0.0 for _ in times], "greater than 0"),
        (lambda times: [-1.0, *times[1:]], "greater than 0"),
    ],
)
def test_times_that_cannot_be_are_refused(
    tmp_path: Path, seconds: Callable[[list[float]], list[float]], message: str
) -> None:
    path = tmp_path / "baseline.json"
    data = suite(1.5).model_dump(mode="json")
    path.write_text(json.dumps(with_seconds(data, seconds)))
    with pytest.raises(BadOption, match=message):
        read_suite(path)


def test_a_file_that_is_missing_or_is_not_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="does not exist"):
        read_suite(tmp_path / "nowhere.json")
    (tmp_path / "junk").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadOption, match="is not a measurement"):
        read_suite(tmp_path / "junk")
    (tmp_path / "half.json").write_text('{"schema_version": 1,')
    with pytest.raises(BadOption, match="is not a measurement"):
        read_suite(tmp_path / "half.json")


@pytest.mark.parametrize(("text", "value"), [("5%", 0.05), ("0 %", 0.0), ("2.5%", 0.025), ("150%", 1.5)])
def test_percentages_are_read_as_fractions(text: str, value: float) -> None:
    assert fraction_of(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["5", "-5%", "five%", "", "nan%"])
def test_text_that_is_no_percentage_is_refused(text: str) -> None:
    with pytest.raises(BadOption, match="--fail-above"):
        fraction_of(text)


CHOKING = {
    "lists": "[" * 100_000,
    "objects": '{"a":' * 100_000,
    "a number of many digits": '{"schema_version": ' + "9" * 5001 + "}",
    "half a character": '{"thunder": "\\ud800"}',
    "nothing": "",
    "a zero": "\0",
    "no measurements": '{"schema_version": 1, "thunder": "1", "reports": []}',
    "no candidates": '{"schema_version": 1, "thunder": "1", "reports": [{"machine": "a", "device": "cpu", "runs": 2, '
    '"warmup": 0, "configuration": {}, "candidates": []}]}',
}


@pytest.mark.parametrize("kind", CHOKING)
def test_file_that_breaks_the_json_parser_is_refused(tmp_path: Path, kind: str) -> None:
    (tmp_path / "baseline.json").write_text(CHOKING[kind])
    with pytest.raises(BadOption, match="is not a measurement"):
        read_suite(tmp_path / "baseline.json")
