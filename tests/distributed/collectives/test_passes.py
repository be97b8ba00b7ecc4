"""Passes keep collectives: they drop, share or fuse none, and the inputs of a collective live until the wait."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

import thunder_core as thunder
from thunder_core.backend.claiming.free import free_after_last_use
from thunder_core.backend.fusion.partition import partition_into_regions
from thunder_core.passes.transforms.cse import ShareCommonExpressions
from thunder_core.passes.transforms.dce import DropDeadCode
from thunder_core.tracing.analysis.collectives import Waits, collectives_of
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace
from thunder_core.workflow.artifact.format import object_paths
from thunder_core.workflow.benchmark.allocations import peak_allocated

pytestmark = [pytest.mark.filterwarnings("ignore::FutureWarning"), pytest.mark.usefixtures("group_of_one")]


def first_trace(program: Callable[..., Any], *args: Any) -> Trace:
    """The trace of a program before all passes."""
    compiled = thunder.jit(program)
    compiled(*args)
    trace: Trace = thunder.last_traces(compiled)[0]
    return trace


def kinds(trace: Trace) -> list[str]:
    return [collective.kind for collective in collectives_of(trace)]


def names(bsyms: tuple[BoundSymbol, ...]) -> list[str]:
    return [bsym.symbol.short_name for bsym in bsyms]


def overlapping(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = x * 2
    work = dist.all_reduce(z, async_op=True)
    y = (y.sin() + 1) * 3
    work.wait()
    return (y * 2 + z) / 3


def test_memory_names_the_lines_that_overlap_a_collective_and_a_wait_allocates_nothing() -> None:
    def reduced(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        y = overlapping(x, y)
        return y + funcol.all_reduce(y, "sum", dist.group.WORLD)

    compiled, arguments = thunder.jit(reduced, executors=("torch",)), (torch.ones(999), torch.ones(999))
    compiled(*arguments)
    use = thunder.examine_memory(compiled)
    assert use.own == pytest.approx(peak_allocated(lambda: compiled(*arguments)), rel=0.01)
    starts = [line.number for line in use.lines if line.starts]
    lines = [(line.call.rpartition(".")[2], line.beside) for line in use.lines if line.beside]
    assert len(starts) == 2
    assert lines == [(name, (starts[0],)) for name in ("sin", "add", "mul")]
    assert str(use).endswith("collectives: 2, 1 of them overlap computation")


def test_work_begins_and_ends_where_the_program_says() -> None:
    trace = first_trace(overlapping, torch.ones(3), torch.ones(3))
    order = names(trace.bound_symbols)
    assert order.index("all_reduce") < order.index("sin") < order.index("wait_tensor") < order.index("copy_")


def test_no_region_crosses_a_collective() -> None:
    trace = first_trace(overlapping, torch.ones(3), torch.ones(3))
    plan = partition_into_regions(trace, lambda bsym: True, updates=True)
    regions = [plan.bsyms[positions.start : positions.stop] for positions, _ in plan.occurrences]
    assert len(regions) == 2
    assert not any(bsym.communicates for region in regions for bsym in region)
    outside = [bsym for bsym in plan.bsyms if bsym.communicates]
    assert names(tuple(outside)) == ["all_reduce", "wait_tensor"]


def test_writes_are_not_moved_across_a_collective() -> None:
    def update(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        work = dist.all_reduce(x, async_op=True)
        y.mul_(3)
        work.wait()
        x.add_(1)
        y.add_(x)
        return x + y

    trace = first_trace(update, torch.ones(3), torch.ones(3))
    plan = partition_into_regions(trace, lambda bsym: True, updates=True)
    written = [name for bsym in plan.bsyms for name in bsym.mutates]
    assert written == [name for bsym in trace.bound_symbols for name in bsym.mutates]


def test_equal_collectives_are_not_shared() -> None:
    def twice(x: torch.Tensor) -> torch.Tensor:
        group = dist.group.WORLD
        return funcol.all_reduce(x, "sum", group) + funcol.all_reduce(x, "sum", group)

    trace = first_trace(twice, torch.ones(3))
    assert kinds(ShareCommonExpressions()(trace)) == ["all_reduce", "all_reduce"]


def test_collective_without_a_reader_is_kept_with_its_wait() -> None:
    def unread(x: torch.Tensor) -> torch.Tensor:
        funcol.all_gather_tensor(x.sin(), 0, dist.group.WORLD)
        dist.barrier()
        y = x * 2
        torch.ops._c10d_functional.all_reduce_(y, "sum", dist.group.WORLD.group_name)
        torch.ops._c10d_functional.wait_tensor(y)
        return y

    trace = DropDeadCode()(first_trace(unread, torch.ones(3)))
    assert kinds(trace) == ["all_gather_into_tensor", "barrier", "all_reduce"]
    waits = [bsym for bsym in trace.bound_symbols if bsym.symbol.short_name in ("wait_tensor", "wait")]
    assert len(waits) == 3
    assert "sin" in names(trace.bound_symbols)


def test_input_of_a_collective_lives_until_the_wait() -> None:
    def gathered(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        part = x * 2
        work = dist.all_gather_into_tensor(out := torch.empty(3), part, async_op=True)
        y = y.sin()
        work.wait()
        return out + y

    trace = first_trace(gathered, torch.ones(3), torch.ones(3))
    ((wait, start),) = Waits(trace.bound_symbols).starts.items()
    (read,) = trace.bound_symbols[start].inputs
    freed = free_after_last_use(trace)
    places = {bsym.symbol.short_name: place for place, bsym in enumerate(freed.bound_symbols)}
    deleted = [
        place for place, bsym in enumerate(freed.bound_symbols) if read in bsym.args and "del" in bsym.symbol.name
    ]
    assert deleted and deleted[0] > places["wait_tensor"]
    assert wait > start


def test_facts_of_collectives() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(x, dist.ReduceOp.MAX)
        dist.broadcast(x, 0)
        dist.reduce(x, 0)
        return x

    collectives = collectives_of(first_trace(program, torch.ones(4, 2)))
    assert list(map(str, collectives)) == [
        "all_reduce max float32 32 bytes",
        "broadcast 0 float32 32 bytes",
        "reduce sum 0 float32 32 bytes",
    ]
    assert {collective.group for collective in collectives} == {dist.group.WORLD.group_name}  # type: ignore[union-attr]
    assert all(collective.bytes == 32 for collective in collectives)


def test_checkpointed_collective_is_made_again_in_the_backward() -> None:
    def block(x: torch.Tensor) -> torch.Tensor:
        return funcol.all_reduce(x.sin(), "sum", dist.group.WORLD).exp() * 3

    def program(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
        return result

    compiled = thunder.jit(program)
    x = torch.ones(3, requires_grad=True)
    compiled(x).sum().backward()
    backward = thunder.last_backward_traces(compiled)[-1]
    assert kinds(backward) == ["all_reduce", "all_reduce"]


def test_compiled_function_of_a_torch_class_is_printed_by_its_own_name() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = dist.nn.functional.all_reduce(x * 2, group=dist.group.WORLD)
        return result * 3

    compiled = thunder.jit(program)
    assert compiled(torch.ones(2, requires_grad=True)).tolist() == [6, 6]
    with torch.no_grad():
        assert compiled(torch.ones(2)).tolist() == [6, 6]


class Reducing(torch.nn.Module):
    """A layer whose result is reduced in place."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(x).clone()
        dist.all_reduce(y)
        dist.reduce(y, 0)
        dist.barrier()
        return y


def test_artifact_communicates(tmp_path: Path) -> None:
    model = Reducing().eval()
    with torch.no_grad():
        compiled = thunder.jit(model)
        compiled(torch.ones(2, 3))
        thunder.save(compiled, tmp_path / "artifact")
        loaded = thunder.load(tmp_path / "artifact", model)
        assert torch.equal(loaded(torch.ones(2, 3) * 2), model(torch.ones(2, 3) * 2))


def test_property_of_a_class_is_found_by_its_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process with many objects, the search from the model ends before it reaches the property."""
    monkeypatch.setattr(object_paths, "MAX_OBJECTS", 10)
    test_artifact_communicates(tmp_path)
