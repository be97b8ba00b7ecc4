"""Candidates are called in turn, as often as requested, and the figures are computed from the raw times."""

from __future__ import annotations

import gc
import statistics as plain
import time
from collections import Counter
from collections.abc import Callable

import pytest
import torch

from thunder_core.foundation.errors import BadOption
from thunder_core.workflow.benchmark import BenchmarkReport, measure, measurement, threads_in_use, timing
from thunder_core.workflow.benchmark.measurement import MeasurementSettings, affordable_rounds
from thunder_core.workflow.benchmark.statistics import speedup

CPU = torch.device("cpu")


def measure_three(calls: list[str], **options: object) -> BenchmarkReport:
    """Measure three candidates that record their calls."""
    candidates: dict[str, Callable[[], object]] = {name: lambda name=name: calls.append(name) for name in "abc"}
    return measure(candidates, MeasurementSettings(**{"runs": 6, "warmup": 2, "device": CPU, **options}))


def test_every_round_calls_each_candidate_once_in_a_changing_order() -> None:
    calls: list[str] = []
    report = measure_three(calls)
    rounds = ["".join(calls[i : i + 3]) for i in range(0, len(calls), 3)]
    assert len(rounds) == 8
    assert all(Counter(calls_of_round) == Counter("abc") for calls_of_round in rounds)
    assert len(set(rounds)) > 2
    assert [len(candidate.seconds) for candidate in report.candidates] == [6, 6, 6]
    again: list[str] = []
    measure_three(again)
    assert again == calls


def test_figures_are_computed_from_the_times() -> None:
    report = measure_three([], configuration={"batch": "1"})
    assert [candidate.name for candidate in report.candidates] == ["a", "b", "c"]
    for candidate in report.candidates:
        assert candidate.median == pytest.approx(plain.median(candidate.seconds))
        assert candidate.minimum == min(candidate.seconds)
        assert candidate.maximum == max(candidate.seconds)
        assert candidate.minimum <= candidate.first_quartile <= candidate.median <= candidate.third_quartile
        assert candidate.spread == candidate.third_quartile - candidate.first_quartile
        assert candidate.speedup.value == pytest.approx(report.first.median / candidate.median)
        assert candidate.peak_bytes is None
    assert (report.first.speedup.low, report.first.speedup.high) == (1.0, 1.0)
    assert (report.configuration, report.device, report.runs, report.warmup) == ({"batch": "1"}, "cpu", 6, 2)
    assert " thread" in report.machine
    assert BenchmarkReport.model_validate_json(report.model_dump_json()) == report


def test_memory_is_counted_on_a_cpu_on_request() -> None:
    calls = {"none": lambda: None, "a mebibyte": lambda: torch.empty(1 << 18)}
    report = measure(calls, MeasurementSettings(runs=2, warmup=1, device=CPU, memory=True))
    nothing, something = (candidate.peak_bytes for candidate in report.candidates)
    assert nothing == 0
    assert 1 << 20 <= something < 1.01 * (1 << 20)


def test_leftovers_of_earlier_calls_are_released_before_memory_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A training step frees the gradients of the previous step, which must not reduce its measured memory."""
    asked: list[str] = []
    monkeypatch.setattr(measurement, "peak_memory_of", lambda call, device, profile_cpu: asked.append("count"))
    measure_three([], release=lambda: asked.append("release"))
    assert asked == ["release", "count"] * 3


class FakeGpu:
    """A CUDA device that is not the current one, as far as a timer uses it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[object] = []
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: f"stream of {device}")
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: self.asked.append(f"all of {device}"))
        monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: self)

    def record(self, stream: object = None) -> None:
        self.asked.append(stream)

    def elapsed_time(self, end: FakeGpu) -> float:
        return 2000.0


def test_the_computing_gpu_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu(monkeypatch)
    assert timing.timer_for(torch.device("cuda:1"))(lambda: gpu.asked.append("call")) == 2.0
    whole, stream = "all of cuda:1", "stream of cuda:1"
    assert gpu.asked == [whole, stream, "call", stream, whole]


def test_the_number_of_threads_is_put_back(one_thread: None) -> None:
    with threads_in_use(1):
        assert torch.get_num_threads() == 1
    with threads_in_use(None):
        assert torch.get_num_threads() == 1


def test_halved_time_is_a_speedup_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    def takes(seconds: float) -> None:
        clock[0] += seconds

    monkeypatch.setattr("thunder_core.workflow.benchmark.timing.time.perf_counter", lambda: clock[0])
    candidates = {"slow": lambda: takes(0.5), "fast": lambda: takes(0.25)}
    fast = measure(candidates, MeasurementSettings(runs=5, warmup=1, device=CPU)).candidates[1]
    assert fast.speedup.low == fast.speedup.value == fast.speedup.high == 2.0


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_collection_is_disabled_during_calls_and_restored(enabled: bool) -> None:
    was = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        states: list[bool] = []
        measure({"a": lambda: states.append(gc.isenabled())}, MeasurementSettings(runs=2, warmup=0, device=CPU))
        assert states == [False, False]
        assert gc.isenabled() == enabled
        with pytest.raises(ZeroDivisionError):
            measure({"a": lambda: 1 / 0}, MeasurementSettings(runs=2, warmup=0, device=CPU))
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if was else gc.disable)()


def test_progress_counts_rounds() -> None:
    seen: list[tuple[int, int]] = []
    measure_three([], progress=lambda done, total: seen.append((done, total)))
    assert seen == [(number, 8) for number in range(1, 9)]


def test_a_single_run_is_refused_because_it_has_no_interval() -> None:
    with pytest.raises(BadOption, match="--runs is 1"):
        measure_three([], runs=1)


def test_the_interval_is_of_pairs() -> None:
    """A disturbance of both calls of a round does not change their ratio. Unpaired resampling would miss that."""
    load = [1.0, 5.0, 2.0, 9.0, 3.0, 7.0, 4.0, 8.0, 6.0]
    found = speedup([2 * x for x in load], load)
    assert (found.low, found.value, found.high) == pytest.approx((2.0, 2.0, 2.0))


def test_the_interval_holds_the_ratio_and_narrows_with_rounds() -> None:
    generator = torch.Generator().manual_seed(0)
    noise = (1 + 0.1 * torch.rand(2, 400, generator=generator)).tolist()
    few, many = (speedup([1.5 * x for x in noise[0][:n]], noise[1][:n]) for n in (10, 400))
    assert few.low < 1.5 < few.high
    assert many.high - many.low < few.high - few.low


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_the_work_is_timed_and_its_memory_counted() -> None:
    device = torch.device("cuda")
    x = torch.randn(4096, 4096, device=device)
    report = measure(
        {"one": lambda: x @ x, "four": lambda: x @ x @ x @ x @ x}, MeasurementSettings(runs=5, warmup=2, device=device)
    )
    one, four = report.candidates
    assert 2.5 < four.median / one.median < 5.5
    assert one.peak_bytes is not None
    assert one.peak_bytes >= x.nbytes
    assert report.machine == torch.cuda.get_device_name(device)


def test_every_timer_is_for_a_device_of_torch() -> None:
    assert all(torch.device(name).type == name for name in timing.TIMERS)


def test_rounds_that_fit_into_the_time_follow_from_the_first_round():
    assert affordable_rounds(5, 30, 0.1, 30.0) == (5, 30)
    assert affordable_rounds(5, 30, 100.0, None) == (5, 30)
    assert affordable_rounds(5, 30, 2.0, 30.0) == (3, 12)
    assert affordable_rounds(5, 30, 40.0, 30.0) == (1, 2)
    assert affordable_rounds(0, 30, 10.0, 30.0) == (0, 3)


def test_benchmark_of_slow_calls_ends_when_its_time_is_over():
    report = measure(
        {"eager": lambda: time.sleep(0.02), "thunder": lambda: time.sleep(0.02)},
        MeasurementSettings(runs=200, warmup=5, device=torch.device("cpu"), seconds=0.4),
    )
    assert 2 <= report.runs <= 10
    assert report.warmup <= 3
    assert {len(candidate.seconds) for candidate in report.candidates} == {report.runs}
