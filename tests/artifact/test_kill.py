"""Processes that are killed while they compile and write: the cache and the previous artifact stay usable."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

import thunder_core as thunder
from tests.readme import ROOT
from thunder_core.backend.cache import Store
from thunder_core.workflow.artifact import open_artifact
from thunder_core.workflow.artifact.replay import example_of

pytestmark = pytest.mark.slow
MOST_SECONDS = 120  # for any step on a busy machine


@dataclass
class Run:
    """A process that optimizes, with its process number and its log."""

    number: int
    log: Path

    def said(self, words: str) -> bool:
        return self.log.exists() and words in self.log.read_text()

    @property
    def alive(self) -> bool:
        try:
            os.kill(self.number, 0)
        except ProcessLookupError:
            return False
        return True

    def wait_for(self, words: str) -> None:
        """Wait until the log contains the text or the process has ended."""
        end = time.monotonic() + MOST_SECONDS
        while not self.said(words) and self.alive and time.monotonic() < end:
            time.sleep(0.002)

    def wait(self) -> bool:
        """Wait for the end of the process, and return whether it ended in time."""
        self.wait_for("nothing that it says")
        return self.said("done")

    def kill(self) -> None:
        """Kill the process and its compilers."""
        try:
            os.killpg(self.number, signal.SIGKILL)
        except ProcessLookupError:
            return
        self.wait()


@dataclass
class Nursery:
    """A process that starts processes, which optimize one model into one folder with one cache."""

    process: subprocess.Popen[str]
    folder: Path
    runs: list[Run] = field(default_factory=list)

    @property
    def store(self) -> Store:
        return Store(self.folder / "cache" / "kernels")

    def unfinished(self, run: Run) -> list[Path]:
        """The folders that processes have begun to write."""
        return list((self.folder / "places").glob(f".*-{run.number}-*"))

    def wait_for_folder(self, run: Run) -> None:
        """Wait until the process has begun to write a folder or has ended."""
        while run.alive and not self.unfinished(run):
            time.sleep(0.0005)

    def start(self, out: str = "out.thunder", die: str = "") -> Run:
        log = self.folder / f"log-{len(self.runs)}"
        asked = {"out": str(self.folder / "places" / out), "cache": str(self.folder / "cache"), "log": str(log)}
        self.process.stdin.write(json.dumps({**asked, "die": die}) + "\n")
        self.process.stdin.flush()
        self.runs.append(Run(int(self.process.stdout.readline()), log))
        return self.runs[-1]


@pytest.fixture(scope="module")
def nursery(tmp_path_factory) -> Iterator[Nursery]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    command = [sys.executable, "-m", "tests.artifact.nursery"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, env=environment, **pipes) as process:
        assert process.stdout.readline() == "ready\n"
        made = Nursery(process, tmp_path_factory.mktemp("nursery"))
        yield made
        for run in made.runs:
            run.kill()
        process.stdin.close()


def assert_sound(nursery: Nursery) -> None:
    """Check that the cache has no damage, and that the old or the new artifact is complete and can be loaded."""
    assert [record.damage for record in nursery.store.verify() if record.damage] == []
    open_artifact(nursery.folder / "places" / "out.thunder")


def test_two_processes_killed_processes_and_the_old_artifact(nursery):
    """Processes are killed while compiling; two run at once and succeed; others are killed while they write."""
    draw = random.Random(4)
    killed, results = 0, []
    for _ in range(5):  # the cache is empty, so that there is something to compile
        run = nursery.start()
        run.wait_for("begin compile")
        time.sleep(draw.uniform(0, 1.5))
        killed += run.alive
        run.kill()
        assert [record.damage for record in nursery.store.verify() if record.damage] == []
    assert killed == 5
    both = [nursery.start("out.thunder"), nursery.start("other.thunder")]
    assert [run.wait() for run in both] == [True, True], [run.log.read_text() for run in both]
    assert_sound(nursery)
    assert nursery.store.entries()
    left = 0
    for number in range(15):
        run = nursery.start()
        if number % 3:
            nursery.wait_for_folder(run)
        else:
            run.wait_for("begin trace")
        time.sleep(draw.uniform(0, 0.02 if number % 3 else 1))
        killed += run.alive
        run.kill()
        assert_sound(nursery)
        left += bool(nursery.unfinished(run))
    assert killed > 12, "the processes had ended before they were killed"
    assert left > 3, "they were killed when they were writing nothing"
    assert nursery.start().wait()
    assert_sound(nursery)
    assert sorted(path.name for path in (nursery.folder / "places").iterdir()) == ["other.thunder", "out.thunder"]
    assert list((nursery.folder / "cache" / "kernels" / "building").iterdir()) == []
    for name in ("other.thunder", "out.thunder"):  # with an empty cache, and with a full one
        loaded = thunder.load(nursery.folder / "places" / name, strict=True)
        with torch.no_grad():
            results.append(loaded(**example_of(nursery.folder / "places" / name)).logits)
    torch.testing.assert_close(*results)


STEPS = ("sync_files", "replace_folder", "exchange_names", "sync_folder")


@pytest.mark.parametrize(
    "step",
    [
        "thunder_core.workflow.artifact.format.artifact_folder:refuse_existing",
        *(f"thunder_core.foundation.storage.folder:{step}" for step in STEPS),
    ],
)
def test_killed_at_each_step_of_the_exchange(nursery, step):
    """A process that dies before any step leaves the old or the new artifact under its name."""
    if not (nursery.folder / "places" / "out.thunder").exists():
        assert nursery.start().wait()
    run = nursery.start(die=step)
    assert not run.wait()
    assert_sound(nursery)
