"""Many processes with one store: each kernel is built once, and a killed process causes no harm."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cache.samples import key_of
from tests.cache.worker import REGIONS, build_slowly, content
from tests.readme import ROOT
from thunder_core.backend.cache import Store


@contextmanager
def workers(task: str, folder: Path, number: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Several processes with the same task, all of which are ready. They are killed at the end if they still run."""
    command = [sys.executable, "-m", "tests.cache.worker", task, str(folder)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    running = [
        subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True) for _ in range(number)
    ]
    try:
        while len(list(folder.glob("ready-*"))) < number:
            assert all(process.poll() is None for process in running)
            time.sleep(0.005)
        yield running
    finally:
        for process in running:
            process.kill()
            process.communicate()
        for path in folder.glob("ready-*"):
            path.unlink()


@pytest.mark.parametrize("number", [2, 5])
def test_processes_that_want_the_same_build_it_once(tmp_path, number):
    with workers("together", tmp_path, number) as running:
        (tmp_path / "go").touch()
        errors = [process.communicate(timeout=120)[1] for process in running]
    assert [(process.returncode, error) for process, error in zip(running, errors, strict=True)] == [(0, "")] * number
    assert sorted((tmp_path / "log").read_text().split()) == [str(region) for region in range(REGIONS)]
    assert [record.damage for record in Store(tmp_path / "kernels").verify()] == [""] * REGIONS


@pytest.mark.slow
def test_killed_processes_leave_a_store_that_works_and_heals(tmp_path):
    """20 pairs of processes that build, drop, prune and clear are killed at a random moment."""
    draw = random.Random(20)
    store = Store(tmp_path / "kernels", patience=20)
    interrupted = 0
    for _ in range(20):
        with workers("forever", tmp_path, 2) as running:
            time.sleep(draw.uniform(0, 0.25))
            for process in running:
                process.send_signal(signal.SIGKILL)
                process.wait()
        assert [process.returncode for process in running] == [-signal.SIGKILL] * 2
        interrupted += any((store.folder / "building").iterdir()) if (store.folder / "building").exists() else 0
        assert not [record for record in store.entries() if record.damage]
        for region in range(REGIONS):
            entry = store.get_or_build(key_of(str(region)), lambda place, region=region: build_slowly(place, region))
            assert entry.contents == {"kernel.so": content(region), "wrapper.py": f"region = {region}\n".encode()}
        store.prune(max_bytes=draw.randrange(4) * 300_000)
        assert list((store.folder / "building").iterdir()) == []
        assert not [record for record in store.verify() if record.damage]
    assert interrupted > 5, "the processes were killed when they were doing nothing"
