"""The launches of Triton's kernels in a trace, for tests."""

from __future__ import annotations

from collections.abc import Iterator

from thunder_core.tracing.ir.trace import Trace
from thunder_executors.triton.ahead import bsyms_of, launches
from thunder_executors.triton.launch import Launch


def launches_of(trace: Trace) -> Iterator[Launch]:
    """Yield the launches of a trace's kernels, found by running their bound symbols on tensors without data."""
    for bsym in bsyms_of(trace, "triton"):
        yield from launches(bsym)
