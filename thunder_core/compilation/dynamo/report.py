"""The report of what Dynamo captured of a program, and of what it left to eager PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from thunder_core.backend.runtime.captured import CapturedGraph, CapturedSubject, Split
from thunder_core.compilation.dynamo.graph_places import function_name, line_of_stack
from thunder_core.foundation.errors import SourceLine, WrongInputs

KEPT_METRICS = 4096  # of how many captures Dynamo is to remember what became of them


class CaptureLog:
    """Notes what Dynamo does with functions: where it splits them, and those that it leaves alone."""

    def __init__(self, captured: CapturedSubject) -> None:
        self.captured = captured
        torch._dynamo.utils.set_compilation_metrics_limit(KEPT_METRICS)

    @contextmanager
    def noting(self) -> Iterator[None]:
        """While this lasts, what Dynamo does is noted."""
        metrics = torch._dynamo.utils.get_compilation_metrics()
        last = metrics[-1] if metrics else None
        splits = len(torch._dynamo.utils.graph_break_reasons)
        try:
            yield
        finally:
            for reason in torch._dynamo.utils.graph_break_reasons[splits:]:
                self.captured.note(Split(in_a_line(reason.reason), line_of_stack(reason.user_stack)))
            for one in metrics_behind(last):
                if not one.has_guarded_code and one.fail_type is not None:
                    self.captured.note(left_alone(one))


def metrics_behind(last: Any) -> list[Any]:
    """The measurements of Dynamo of its captures behind one; of all where that is forgotten, or None."""
    metrics = torch._dynamo.utils.get_compilation_metrics()
    places = [place for place, one in enumerate(metrics) if one is last]
    return metrics[places[-1] + 1 :] if places else metrics


def left_alone(metrics: Any) -> Split:
    """The split of a function that Dynamo did not capture."""
    name = function_name(metrics.co_name or "")
    file, line = metrics.fail_user_frame_filename, metrics.fail_user_frame_lineno
    where = SourceLine(file or metrics.co_filename, line or metrics.co_firstlineno, name)
    return Split(in_a_line(metrics.fail_reason or metrics.fail_type), where, function=name)


def in_a_line(reason: str) -> str:
    """The first two sentences of a reason of Dynamo's: what it met, and what that means; hints are left out."""
    lines = [line.strip() for line in reason.strip().splitlines() if line.strip()]
    explained = [line.removeprefix("Explanation: ") for line in lines[1:2] if line.startswith("Explanation: ")]
    return ": ".join((lines[0].rstrip("."), *explained)) if lines else "Dynamo gives no reason"


def captured_of(compiled: Any) -> CapturedSubject:
    """The graphs and splits of a function or module that `thunderfx` returned; `WrongInputs` for anything else."""
    captured = getattr(compiled, "_thunder", None)
    if not isinstance(captured, CapturedSubject):
        raise WrongInputs(f"{compiled!r:.80} was not compiled by thunderfx", fix="pass the result of thunderfx")
    return captured


def graphs(compiled: Any) -> tuple[CapturedGraph, ...]:
    """The graphs that Dynamo has captured of what `thunderfx` returned, in that order; `WrongInputs` for anything else.

    A function that is called with inputs of other kinds has a graph for each. `last_traces`, `last_backward_traces` and
    their like take a graph.
    """
    return tuple(captured_of(compiled).graphs)


def splits(compiled: Any) -> tuple[Split, ...]:
    """The places at which Dynamo ended graphs of what `thunderfx` returned: what runs in eager PyTorch, and why.

    Lines behind such a place are in graphs again; of a `function` that is named, nothing is. What is not in a graph is
    not optimized. Raises `WrongInputs` for what `thunderfx` did not return.
    """
    return tuple(captured_of(compiled).splits)
