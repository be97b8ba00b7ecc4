"""Errors of exit statuses 1 and 5: a requested check failed, or a measurement is worse than allowed."""

from __future__ import annotations

from thunder_core.foundation.errors.tree import BaselineError, Finding


class CacheDamaged(Finding):
    """`thunder cache verify` found damaged entries: their contents have changed since they were written.

    Thunder has removed the damaged entries, and builds them again when they are next needed. A single damaged entry may
    be due to a flipped bit, a hardware error that rarely occurs. If many entries are damaged, check the disk and the
    memory.
    """

    code = "TH0101"
    rows: tuple[object, ...] = ()  # the records of the damaged entries, for code that catches the error


class SlowerThanBaseline(BaselineError):
    """`thunder bench --baseline FILE --fail-above P%` found a configuration that is slower than allowed.

    Repeat the command while nothing else runs on the machine. If the result is the same, compare the two versions with
    `thunder inspect-trace` and `thunder executors --of`. If the slower speed is intended, write a new baseline with
    `--out FILE`.
    """

    code = "TH0501"
    rows: tuple[object, ...] = ()  # all comparisons, for code that catches the error


class SpeedupMissed(BaselineError):
    """`--require-speedup X` was given, and the benchmark does not show this speed-up over the first contender.

    The benchmark shows the speed-up if it has at least six rounds, the measurement is stable, and the whole 95%
    confidence interval is at or above X. Otherwise, `thunder optimize` writes no artifact. `thunder bench` still writes
    the files of `--out` and `--plot`.
    """

    code = "TH0502"
    report: object = None  # the BenchmarkSuite or BenchmarkReport, for code that catches the error
