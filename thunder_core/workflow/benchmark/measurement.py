"""Measure candidates in turn in one process, so that disturbances affect all candidates equally."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

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


def measure(
    candidates: Mapping[str, Call],
    *,
    runs: int,
    warmup: int,
    device: torch.device,
    progress: Callable[[int, int], None] = ignore_progress,
    configuration: Mapping[str, str] | None = None,
    memory: bool = False,
    release: Callable[[], object] = do_nothing,
    seconds: float | None = None,
    timer: Callable[[Call], float] | None = None,
) -> BenchmarkReport:
    """Time each candidate `runs` times after `warmup` warm-up rounds; the others are compared with the first candidate.

    A round calls every candidate once, in a reproducible order that changes between rounds. The garbage collector runs
    between rounds, never during a call. `progress(done, total)` counts rounds.

    If `memory` is set, the peak memory of a call is also measured on the CPU, with one additional slow call of each
    candidate. Before this call, `release` frees the memory that earlier calls left allocated, such as gradients.
    `seconds` limits the number of rounds, estimated from the time of the first round. A `timer` replaces the device's
    clock. Raises BadOption for fewer than two runs, because a confidence interval needs two.
    """
    if runs < FEWEST_RUNS:
        raise BadOption(
            f"--runs is {runs}, but a confidence interval needs at least {FEWEST_RUNS} rounds",
            fix="use --runs 20 or more",
        )
    with _pause_collector(), observe_load() as load:
        times, warmup, runs = _time_rounds(candidates, timer or timer_for(device), warmup, runs, seconds, progress)
    peaks = {name: _peak(call, device, memory, release) for name, call in candidates.items()}
    first = next(iter(times.values()))
    return BenchmarkReport(
        machine=machine_name(device),
        device=str(device),
        configuration=dict(configuration or {}),
        runs=runs,
        warmup=warmup,
        load=load.in_words(threads_of(device)),
        candidates=tuple(describe_candidate(name, elapsed, first, peaks[name]) for name, elapsed in times.items()),
    )


def _time_rounds(
    candidates: Mapping[str, Call],
    timer: Callable[[Call], float],
    warmup: int,
    runs: int,
    seconds: float | None,
    progress: Callable[[int, int], None],
) -> tuple[dict[str, list[float]], int, int]:
    """Return the times of each candidate, and the numbers of warm-up rounds and of runs that `seconds` allowed."""
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
        progress(number, warmup + runs)
        if number == 1:
            warmup, runs = affordable_rounds(warmup, runs, time.perf_counter() - began, seconds)
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
