"""The report of the graphs that Dynamo captured, and of the parts of the program that run in eager PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from thunder_core.backend.runtime.captured import CapturedGraph, CapturedSubject, Split
from thunder_core.compilation.dynamo.source_lines import function_name, line_of_stack
from thunder_core.foundation.errors import SourceLine, WrongInputs

KEPT_METRICS = 4096  # the number of captures for which Dynamo stores metrics


class CaptureLog:
    """A log of functions that Dynamo splits or does not capture."""

    def __init__(self, captured: CapturedSubject) -> None:
        self.captured = captured
        torch._dynamo.utils.set_compilation_metrics_limit(KEPT_METRICS)

    @contextmanager
    def note_captures(self) -> Iterator[None]:
        """Record the compilations and graph breaks of Dynamo during the block."""
        metrics = torch._dynamo.utils.get_compilation_metrics()
        last = metrics[-1] if metrics else None
        splits = len(torch._dynamo.utils.graph_break_reasons)
        try:
            yield
        finally:
            for reason in torch._dynamo.utils.graph_break_reasons[splits:]:
                self.captured.note(Split(reason_in_a_line(reason.reason), line_of_stack(reason.user_stack)))
            for capture in metrics_after(last):
                if not capture.has_guarded_code and capture.fail_type is not None:
                    self.captured.note(split_of_uncaptured(capture))


def metrics_after(last: object) -> list[Any]:
    """Return Dynamo's metrics of all captures after the capture `last`.

    If `last` is None or no longer stored, the result has all stored metrics.
    """
    metrics = torch._dynamo.utils.get_compilation_metrics()
    indices = [index for index, metric in enumerate(metrics) if metric is last]
    return metrics[indices[-1] + 1 :] if indices else metrics


def split_of_uncaptured(metrics: Any) -> Split:
    """Return the `Split` that describes a function that Dynamo did not capture."""
    name = function_name(metrics.co_name or "")
    file, line = metrics.fail_user_frame_filename, metrics.fail_user_frame_lineno
    where = SourceLine(file or metrics.co_filename, line or metrics.co_firstlineno, name)
    return Split(reason_in_a_line(metrics.fail_reason or metrics.fail_type), where, function=name)


def reason_in_a_line(reason: str) -> str:
    """Return the first two sentences of Dynamo's reason, the cause and the explanation, without hints."""
    lines = [line.strip() for line in reason.strip().splitlines() if line.strip()]
    explained = [line.removeprefix("Explanation: ") for line in lines[1:2] if line.startswith("Explanation: ")]
    return ": ".join((lines[0].rstrip("."), *explained)) if lines else "Dynamo gives no reason"


def captured_subject(compiled: object) -> CapturedSubject:
    """Return the graphs and splits of a result of `thunderfx`; raise `WrongInputs` for anything else."""
    captured = getattr(compiled, "_thunder", None)
    if not isinstance(captured, CapturedSubject):
        raise WrongInputs(f"{compiled!r:.80} was not compiled by thunderfx", fix="pass the result of thunderfx")
    return captured


def graphs(compiled: object) -> tuple[CapturedGraph, ...]:
    """Return the graphs that Dynamo has captured for a result of `thunderfx`; raise `WrongInputs` for anything else.

    A function that is called with inputs of different types or shapes may have several graphs. `last_traces`,
    `last_backward_traces` and similar functions accept a graph.
    """
    return tuple(captured_subject(compiled).graphs)


def splits(compiled: object) -> tuple[Split, ...]:
    """Return the lines at which Dynamo ended the graphs of a `thunderfx` result, each with the reason.

    Such a line runs in eager PyTorch and is not optimized. Code after it is in a graph again. If a split names
    a `function`, no part of that function is in a graph. Raises `WrongInputs` if `thunderfx` did not return `compiled`.
    """
    return tuple(captured_subject(compiled).splits)
