"""Measure candidates in turn in one process, so that disturbances affect all candidates equally."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from thunder_core.foundation.errors import BadOption
from thunder_core.workflow.benchmark.machine import machine_name, threads_of
from thunder_core.workflow.benchmark.machine_load import observe_load
from thunder_core.workflow.benchmark.report import BenchmarkReport
from thunder_core.workflow.benchmark.statistics import describe_candidate
from thunder_core.workflow.benchmark.timing import Call, peak_memory_of, timer_for

FEWEST_RUNS = 2
SEED = 20


def ignore_progress(done: int, total: int) -> None:
    """Ignore the progress."""


def do_nothing() -> None:
    """Do nothing: the default of `release`, for calls that leave no memory allocated."""


@dataclass(frozen=True)
class MeasurementSettings:
    """The settings of a measurement.

    - `runs`, `warmup`: the numbers of timed rounds, and of warm-up rounds before them.
    - `progress(done, total)` counts rounds.
    - `configuration`: the facts that distinguish this measurement from others.
    - `memory`: the peak memory of a call is also measured on the CPU, with one additional slow call of each candidate.
    - `release` frees the memory that earlier calls left allocated, such as gradients, before this call.
    - `seconds` limits the number of rounds, estimated from the time of the first round.
    - `timer` replaces the device's clock.
    """

    runs: int
    warmup: int
    device: torch.device
    progress: Callable[[int, int], None] = ignore_progress
    configuration: Mapping[str, str] = field(default_factory=dict)
    memory: bool = False
    release: Callable[[], object] = do_nothing
    seconds: float | None = None
    timer: Callable[[Call], float] | None = None


def measure(candidates: Mapping[str, Call], settings: MeasurementSettings) -> BenchmarkReport:
    """Time the candidates in rounds, and compare the others with the first candidate.

    A round calls every candidate once, in a reproducible order that changes between rounds. The garbage collector runs
    between rounds, never during a call. Raises BadOption for fewer than two runs, because a confidence interval needs
    two.
    """
    device = settings.device
    if settings.runs < FEWEST_RUNS:
        raise BadOption(
            f"--runs is {settings.runs}, but a confidence interval needs at least {FEWEST_RUNS} rounds",
            fix="use --runs 20 or more",
        )
    with _pause_collector(), observe_load() as load:
        times, warmup, runs = _time_rounds(candidates, settings)
    peaks = {name: _peak(call, device, settings.memory, settings.release) for name, call in candidates.items()}
    first = next(iter(times.values()))
    return BenchmarkReport(
        machine=machine_name(device),
        device=str(device),
        configuration=dict(settings.configuration),
        runs=runs,
        warmup=warmup,
        load=load.in_words(threads_of(device)),
        candidates=tuple(describe_candidate(name, elapsed, first, peaks[name]) for name, elapsed in times.items()),
    )


def _time_rounds(
    candidates: Mapping[str, Call], settings: MeasurementSettings
) -> tuple[dict[str, list[float]], int, int]:
    """Return the times of each candidate, and the numbers of warm-up rounds and of runs that the time limit allowed."""
    timer, warmup, runs = settings.timer or timer_for(settings.device), settings.warmup, settings.runs
    began = time.perf_counter()
    times: dict[str, list[float]] = {name: [] for name in candidates}
    number = 0
    while number < warmup + runs:
        gc.collect(0)
        for name in _order_of(number, candidates):
            elapsed = timer(candidates[name])
            if number >= warmup:
                times[name].append(elapsed)
        number += 1
        settings.progress(number, warmup + runs)
        if number == 1:
            warmup, runs = affordable_rounds(warmup, runs, time.perf_counter() - began, settings.seconds)
    return times, warmup, runs


def affordable_rounds(warmup: int, runs: int, round_seconds: float, seconds: float | None) -> tuple[int, int]:
    """Return the warm-up rounds and timed rounds that fit into a number of seconds, by the time of the first round.

    At least two rounds are timed.
    """
    if seconds is None or (warmup + runs) * round_seconds <= seconds:
        return warmup, runs
    rounds = int(seconds / round_seconds)
    warmup = min(warmup, max(rounds // 4, 1))
    return warmup, min(runs, max(rounds - warmup, FEWEST_RUNS))


def _peak(call: Call, device: torch.device, profile_cpu: bool, release: Callable[[], object]) -> int | None:
    release()
    return peak_memory_of(call, device, profile_cpu=profile_cpu)


def _order_of(number: int, candidates: Mapping[str, Call]) -> list[str]:
    return random.Random(SEED + number).sample(list(candidates), len(candidates))  # noqa: S311 - no secret


@contextmanager
def _pause_collector() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
