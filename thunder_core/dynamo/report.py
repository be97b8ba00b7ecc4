"""The report of what Dynamo captured of a program, and of what it left to eager PyTorch."""

from __future__ import annotations

from typing import Any

import torch

from thunder_core.dynamo.graph_places import function_name, line_of_stack
from thunder_core.errors import SourceLine, WrongInputs
from thunder_core.runtime.captured import CapturedGraph, CapturedSubject, Split

KEPT_METRICS = 4096  # of how many captures Dynamo is to remember what became of them


class CaptureLog:
    """Notes what Dynamo did since it was last asked: the splits of functions, and functions that it left alone."""

    def __init__(self, captured: CapturedSubject) -> None:
        self.captured = captured
        torch._dynamo.utils.set_compilation_metrics_limit(KEPT_METRICS)
        self.skip_to_now()

    def skip_to_now(self) -> None:
        """Leave out what Dynamo did until now, for others."""
        metrics = torch._dynamo.utils._compilation_metrics
        self._last = metrics[-1] if metrics else None
        self._splits = len(torch._dynamo.utils.graph_break_reasons)

    def is_current(self) -> bool:
        """Whether Dynamo has captured nothing, and tried to capture nothing, since this was last asked."""
        metrics = torch._dynamo.utils._compilation_metrics
        return (metrics[-1] if metrics else None) is self._last

    def note(self) -> None:
        """Note what Dynamo did."""
        if self.is_current():
            return
        reasons = torch._dynamo.utils.graph_break_reasons
        for reason in reasons[self._splits :]:
            self.captured.note(Split(in_a_line(reason.reason), line_of_stack(reason.user_stack)))
        for metrics in self._new_metrics():
            if not metrics.has_guarded_code and metrics.fail_type is not None:
                self.captured.note(left_alone(metrics))
        self.skip_to_now()

    def _new_metrics(self) -> list[Any]:
        metrics = torch._dynamo.utils.get_compilation_metrics()
        places = [place for place, one in enumerate(metrics) if one is self._last]
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
        raise WrongInputs(f"{compiled!r:.80} was not compiled by thunderfx", fix="pass what thunderfx returned")
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
