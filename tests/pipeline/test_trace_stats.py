"""The statistics of an optimization: memory, operations and stages of the traces."""

from __future__ import annotations

import torch

import thunder_core
from thunder_core.compilation.memory.use import memory_use
from thunder_core.workflow.pipeline.session.build_report import traces_after_computation
from thunder_core.workflow.pipeline.session.program_time import TimeShares
from thunder_core.workflow.pipeline.session.trace_stats import (
    executor_shares,
    memory_points,
    operation_counts,
    trace_summaries,
)


def last_trace(function, *inputs):
    compiled = thunder_core.jit(function)
    with torch.no_grad():
        compiled(*inputs)
    return thunder_core.last_traces(compiled)[-1]


def test_points_are_numbered_by_line():
    trace = last_trace(lambda x: torch.sin(x) + 1, torch.zeros(256))
    points = memory_points(memory_use(trace))
    assert [(point.line, point.bytes, point.peak) for point in points] == [
        (1, 1024, 1024),
        (2, 2048, 2048),
        (3, 1024, 2048),
    ]


def test_operations_are_counted_without_deletions():
    trace = last_trace(lambda x: torch.sin(torch.sin(x)), torch.zeros(4))
    assert {operation.name: operation.count for operation in operation_counts(trace)} == {"torch.sin": 2}


def test_stages_count_their_changes():
    compiled = thunder_core.jit(lambda x: (torch.cos(x), torch.sin(x))[1])
    compiled(torch.zeros(4))
    rows = [row for row in trace_summaries(thunder_core.last_program(compiled)) if row.trace == "computation"]
    assert [row.stage for row in rows] == [str(number) for number in range(len(rows))]
    dropped = next(row for row in rows if row.made_by == "drop dead code")
    assert (dropped.lines, dropped.changed) == (1, 1)
    assert rows[0].changed == 0


def test_a_backward_and_a_tail_are_accounted_for():
    compiled = thunder_core.jit(lambda x: (torch.sin(x).exp().view(2, 2), torch.cos(x)))
    x = torch.ones(4, requires_grad=True)
    both, second = compiled(x), compiled(x)[1]
    (both[0].sum() + both[1].sum()).backward()
    second.sum().backward()
    program = thunder_core.last_program(compiled)
    rows = [row for row in trace_summaries(program) if row.trace in ("tail", "backward")]
    names = [row.made_by for row in rows]
    assert names[0] == "split off views"
    assert names[1:6] == names[6:] == [stage.trace.made_by for stage in program.stages_of("backward")[:5]]
    assert rows[6].changed == 0
    times = TimeShares({"torch": 0.25}, {"torch": 0.75})
    (share,) = executor_shares(program.last("computation"), times, traces_after_computation(program))
    assert (share.executor, share.operations, share.time_share, share.backward_share) == ("torch", 3, 0.25, 0.75)
    lines = [line for trace in traces_after_computation(program) for line in trace.bound_symbols if line.executor]
    assert share.backward == len(lines) > 3
