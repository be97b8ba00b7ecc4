"""The stages of a run, one after another: timed, and announced to whoever watches."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from thunder_core.compiler import Compiler, specializations_of
from thunder_core.errors import Bug
from thunder_core.fusion.watch import watching
from thunder_core.ir.trace import Trace
from thunder_core.models.release_memory import release_memory
from thunder_core.pipeline.progress import COMPARE, QUALITY, Progress
from thunder_core.recipe import Transform
from thunder_core.report import StageTime

HEAVY = frozenset({"load", "compile", COMPARE, QUALITY, "validate", "benchmark"})  # stages that use much memory


class StageClock:
    """Begins stages; a stage ends where the next one begins, or at `stop`, and memory that it has freed is released."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.times: list[StageTime] = []
        self.stage = ""
        self._began = 0.0

    def begin(self, stage: str) -> None:
        """End the stage before, and begin this one."""
        self.stop()
        self.stage, self._began = stage, time.perf_counter()
        self.progress.begin(stage)

    def advance(self, done: int, total: int) -> None:
        """Note how much of the current stage is done."""
        self.progress.advance(done, total)

    def stop(self) -> None:
        """End the current stage, if there is one."""
        if self.stage:
            seconds = time.perf_counter() - self._began
            self.times.append(StageTime(name=self.stage, seconds=seconds))
            if self.stage in HEAVY:
                release_memory()
            self.progress.end(self.stage, seconds)
            self.stage = ""


@dataclass(frozen=True)
class AnnouncedTransform(Transform):
    """A transform that tells the clock of its turn: the first begins the stage `transform`, the last `compile`."""

    transform: Transform
    clock: StageClock
    number: int
    total: int

    def __call__(self, trace: Trace) -> Trace:
        """Apply the transform, and tell the clock."""
        if self.number == 1:
            self.clock.begin("transform")
        changed = self.transform(trace)
        self.clock.advance(self.number, self.total)
        if self.number == self.total:
            self.clock.begin("compile")
        return changed


@contextmanager
def announcing_stages(compiled: object, clock: StageClock) -> Iterator[None]:
    """While the block runs, compiling tells the clock of its steps."""
    cache = specializations_of(compiled)
    compiler = cache.compiler
    if not isinstance(compiler, Compiler):
        raise Bug("a compiled module has no compiler", fix="report this")
    total = len(compiler.transforms)
    told = (
        AnnouncedTransform(transform, clock, number, total)
        for number, transform in enumerate(compiler.transforms, start=1)
    )
    cache.compiler = replace(compiler, transforms=tuple(told))
    try:
        with watching(clock.advance):
            yield
    finally:
        cache.compiler = compiler
