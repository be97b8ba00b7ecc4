"""Errors of exit statuses 1 and 5: a gate that was asked for did not hold, or a measurement is worse than allowed."""

from __future__ import annotations

from thunder_core.errors.tree import BaselineError, Finding


class CacheDamaged(Finding):
    """`thunder cache verify` found entries that are not as they were written.

    They have been dropped: nothing of them was used, and they are built again when they are next needed. A flipped bit
    once in a while is the hardware's; many of them are a reason to look at the disk or the memory.
    """

    code = "TH0101"
    rows: tuple[object, ...] = ()  # the records of the damaged entries, for whoever catches the error


class SlowerThanBaseline(BaselineError):
    """`thunder bench --baseline FILE --fail-above P%` found a configuration that is slower than allowed."""

    code = "TH0501"
    rows: tuple[object, ...] = ()  # every comparison that was made, for whoever catches the error


class SpeedupMissed(BaselineError):
    """`--require-speedup X` was given, and the measurement does not show that speed-up over the first contender.

    It is shown where the whole 95% interval of the speed-up lies at or above X, after six rounds or more, and the
    measurement is not unstable. `thunder optimize` writes no artifact then; `thunder bench` writes what `--out` and
    `--plot` ask for.
    """

    code = "TH0502"
    report: object = None  # the BenchmarkSuite or BenchmarkReport, for whoever catches the error
