"""Time the stages of a run, and report them to an observer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any

from thunder_core.backend.fusion.watch import watching
from thunder_core.backend.runtime.observed_values import ObservedValues
from thunder_core.backend.runtime.program import Program
from thunder_core.backend.runtime.program_compiler import ProgramCompiler
from thunder_core.compilation.compiler import Compiler, specializations_of
from thunder_core.compilation.compiler.for_device import CompilerForDevice
from thunder_core.foundation.errors import Bug
from thunder_core.foundation.memory_limits import private_memory
from thunder_core.foundation.progress_marks import mark_progress
from thunder_core.passes.recipe import Transform
from thunder_core.tracing.ir.trace import Trace
from thunder_core.workflow.models.memory.release_memory import release_memory
from thunder_core.workflow.pipeline.session.progress import CHECK_RECIPE, COMPARE, FIRST_CALLS, QUALITY, Progress
from thunder_core.workflow.report import StageTime

# Stages that use much memory.
MEMORY_HEAVY_STAGES = frozenset(
    {"load", CHECK_RECIPE, "compile", FIRST_CALLS, COMPARE, QUALITY, "validate", "benchmark"}
)


class StageClock:
    """A clock of stages. A stage ends when the next stage begins, or at `stop`.

    At the end of a stage that uses much memory, the freed memory is returned to the operating system.
    """

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.times: list[StageTime] = []
        self.stage = ""
        self._began = 0.0
        self._private_memory = private_memory()

    def begin(self, stage: str) -> None:
        """End the previous stage, and begin this stage."""
        self.stop()
        self.stage, self._began = stage, time.perf_counter()
        mark_progress(stage)
        self.progress.begin(stage)

    def advance(self, done: int, total: int) -> None:
        """Report the progress of the current stage."""
        mark_progress(f"{self.stage} {done}/{total}")
        self.progress.advance(done, total)

    def stop(self) -> None:
        """End the current stage, if there is one."""
        if self.stage:
            seconds = time.perf_counter() - self._began
            self.times.append(StageTime(name=self.stage, seconds=seconds))
            if self.stage in MEMORY_HEAVY_STAGES:
                release_memory(self._private_memory)
            self.progress.end(self.stage, seconds)
            self.stage = ""


@dataclass(frozen=True)
class AnnouncedTransform(Transform):
    """A transform that reports to the clock. The first transform begins the stage `transform`, the last `compile`."""

    transform: Transform
    clock: StageClock
    number: int
    total: int

    @property
    def stands_for(self) -> Transform:
        """The wrapped transform, which errors name."""
        return self.transform

    def __call__(self, trace: Trace) -> Trace:
        """Apply the transform, and report it to the clock."""
        if self.number == 1:
            self.clock.begin("transform")
        changed = self.transform(trace)
        self.clock.advance(self.number, self.total)
        if self.number == self.total:
            self.clock.begin("compile")
        return changed

    def of_function(self, function: Trace) -> Trace:
        """Apply the wrapped transform to the trace of a higher-order operator's function."""
        return self.transform.of_function(function)

    def before_claiming(self, trace: Trace) -> Trace:
        """Apply the wrapped transform's step right before executors claim the trace."""
        return self.transform.before_claiming(trace)


@dataclass(frozen=True)
class AnnouncingCompiler(Compiler):
    """A compiler that begins the stage of the first calls after it has compiled a program."""

    clock: StageClock | None = field(default=None, compare=False)

    def __call__(
        self,
        subject: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        observed: ObservedValues | None = None,
    ) -> Program:
        """Compile a program, and begin the next stage, so that the following call is not counted as compile time."""
        program = super().__call__(subject, args, kwargs, observed)
        if self.clock is not None:
            self.clock.begin(FIRST_CALLS)
        return program


@contextmanager
def announce_stages(compiled: object, clock: StageClock, *, has_first_calls: bool = True) -> Iterator[None]:
    """Report compilations in the block to the clock; with `has_first_calls`, also report when each one ends."""
    cache = specializations_of(compiled)
    compiler = cache.compiler
    cache.compiler = announcing_compiler(compiler, clock, has_first_calls=has_first_calls)
    try:
        with watching(clock.advance):
            yield
    finally:
        cache.compiler = compiler


def announcing_compiler(compiler: ProgramCompiler, clock: StageClock, *, has_first_calls: bool) -> ProgramCompiler:
    """Return a compiler that reports its steps to the clock, and with `has_first_calls` also the end of compiling."""
    if isinstance(compiler, CompilerForDevice):
        announced = announcing_compiler(compiler.compiler, clock, has_first_calls=False)
        assert isinstance(announced, Compiler)
        return replace(compiler, compiler=announced)
    if not isinstance(compiler, Compiler):
        raise Bug("a compiled module has no compiler", fix="report this")
    total = len(compiler.transforms)
    transforms = (
        AnnouncedTransform(transform, clock, number, total)
        for number, transform in enumerate(compiler.transforms, start=1)
    )
    settings = {field.name: getattr(compiler, field.name) for field in fields(compiler)} | {
        "transforms": tuple(transforms)
    }
    return AnnouncingCompiler(**settings, clock=clock if has_first_calls else None)
