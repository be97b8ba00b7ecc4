"""The load of other processes during a measurement."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import namedtuple

import psutil
import pytest
import torch

from thunder_core.workflow.benchmark import measure
from thunder_core.workflow.benchmark.machine_load import MachineLoad, observe_load
from thunder_core.workflow.benchmark.measurement import MeasurementSettings

SPIN = "import time\nend = time.time() + 60\nwhile time.time() < end: pass"
CPU = torch.device("cpu")


def spin(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


@pytest.fixture
def neighbour():
    """Another process that computes without a pause."""
    process = subprocess.Popen([sys.executable, "-c", SPIN])
    yield process
    process.kill()
    process.wait()


def test_load_of_another_process_counts_and_load_of_this_process_does_not(neighbour):
    with observe_load() as load:
        spin(0.5)
    assert load.other_processes is not None
    assert 0.2 < load.other_processes <= load.processors
    neighbour.kill()
    neighbour.wait()
    with observe_load() as alone:
        spin(0.5)
    assert alone.other_processes is not None
    assert alone.other_processes < load.other_processes + 0.5


def test_a_short_interval_gives_no_load():
    with observe_load() as load:
        pass
    assert (load.other_processes, load.in_words(load.processors)) == (None, "")


@pytest.mark.parametrize(
    ("others", "threads", "waits"), [(0.0, 4, False), (0.2, 4, False), (0.5, 4, True), (2.0, 2, False), (2.5, 2, True)]
)
def test_threads_wait_where_fewer_processors_are_free(others, threads, waits):
    load = MachineLoad(processors=4, other_processes=others, stolen=0.0)
    assert load.leaves_too_few_processors(threads) is waits
    assert bool(load.in_words(threads)) is waits


def test_time_that_the_host_took_away_is_named():
    words = MachineLoad(processors=2, other_processes=1.75, stolen=1.25).in_words(2)
    assert words == "busy: other processes use 1.8 of 2 processors, 1.2 of them for other virtual machines"


def test_an_unstable_result_names_the_load(monkeypatch):
    states = namedtuple("states", "user idle steal guest")
    found = iter([states(0.0, 0.0, 0.0, 0.0), states(1e6, 0.0, 0.0, 0.0)])
    monkeypatch.setattr(psutil, "cpu_times", lambda: next(found))
    slow = iter([0.001, 0.1] * 8)
    calls = {name: lambda: time.sleep(next(slow)) for name in ("eager", "thunder")}
    report = measure(calls, MeasurementSettings(runs=7, warmup=1, device=CPU))
    assert report.load.startswith("busy: other processes use ")
    second = report.candidates[1]
    assert report.verdict(second) == "unstable"
    assert report.verdict_in_words(second) == f"unstable: repeat on a quiet machine ({report.load})"
