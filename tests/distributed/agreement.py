"""Checks of what happens where the ranks compile different programs, run on each rank."""

# mypy: disable-error-code="no-untyped-call,no-untyped-def"

from __future__ import annotations

import linecache
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

import thunder_core as thunder
from tests.distributed.collectives import numbers
from tests.distributed.comparison import assert_equal
from thunder_core.backend.runtime import agreement
from thunder_core.foundation.errors import CollectivesDiffer


def assert_differs(program: Callable[..., Any], *texts: str, line: str) -> None:
    """Assert that a program is stopped on this rank, at a line, and names what both ranks do."""
    try:
        thunder.jit(program)(numbers(0, 4))
    except CollectivesDiffer as error:
        assert all(text in str(error) for text in texts), error
        assert error.where is not None
        assert line in linecache.getline(error.where.filename, error.where.lineno), error
    else:
        raise AssertionError("no error")
    dist.barrier()


def other_collective() -> None:
    def program(x):
        y = x * 2
        dist.all_reduce(y)
        if dist.get_rank() == 0:
            dist.broadcast(y, 0)  # rank 0
        else:
            dist.all_reduce(y)  # rank 1
        return y

    assert_differs(program, "collective 2", "`broadcast 0 ", "`all_reduce sum ", line=f"# rank {dist.get_rank()}")


def other_size() -> None:
    def program(x):
        y = torch.ones(3 + dist.get_rank())
        dist.all_reduce(y)
        return x + y.sum()

    assert_differs(program, "collective 1", "12 bytes", "16 bytes", line="dist.all_reduce(y)")


def other_reduction_and_dtype() -> None:
    def program(x):
        y = x.to(torch.float32 if dist.get_rank() else torch.float64)
        return funcol.all_reduce(y, "max" if dist.get_rank() else "sum", dist.group.WORLD)

    assert_differs(program, "`all_reduce sum float64 32 bytes`", "`all_reduce max float32 16 bytes`", line="funcol")


def one_collective_less() -> None:
    def program(x):
        dist.all_reduce(x)
        return funcol.all_reduce(x, "sum", dist.group.WORLD) if dist.get_rank() else x

    assert_differs(program, "collective 2", "no more collectives", line="all_reduce")


def collective_in_backward() -> None:
    """The ranks compare the collectives of a backward before that runs."""
    group = dist.new_group([0, 1])

    def program(x):
        y = funcol.all_reduce(x, "sum", group)
        return y if dist.get_rank() else y.detach() + x

    x = numbers(0, 4).requires_grad_()
    loss = thunder.jit(program)(x).sum()
    if dist.get_rank():
        loss.backward()  # the other rank has no collective in its backward, and compares nothing
    else:
        funcol.all_reduce(torch.ones(4, dtype=torch.float64), "sum", group) + 1
        loss.backward()


def late_rank() -> None:
    """A rank that comes later than the others wait for is waited for by the collective."""
    before, agreement.SECONDS = agreement.SECONDS, 0.2
    try:
        compiled = thunder.jit(lambda x: funcol.all_reduce(x, "sum", dist.group.WORLD))
        time.sleep(1.0 * dist.get_rank())
        assert_equal(compiled(numbers(0, 5)), numbers(0, 5) * 2 + (100 if dist.get_rank() == 0 else -100))
    finally:
        agreement.SECONDS = before


def rank_that_traces_again() -> None:
    """One rank traces again for another size; its collectives are the same, so nobody waits."""

    def program(x):
        total = x.sum()
        dist.all_reduce(total)
        return total * x

    compiled = thunder.jit(program)
    start = time.monotonic()
    for call in range(3):
        x = numbers(call, 3 + call * dist.get_rank())
        assert_equal(compiled(x.clone()), program(x.clone()))
    assert time.monotonic() - start < 8
    assert (thunder.cache_misses(compiled) > 1) is (dist.get_rank() == 1)


def known_program_against_another() -> None:
    """One rank traces a program again while the other traces another one, which is no longer waited for in silence."""
    before, agreement.SECONDS = agreement.SECONDS, 1.0
    group = dist.new_group([0, 1], timeout=timedelta(seconds=5))

    def reduced(x):
        return funcol.all_reduce(x.sum(), "sum", group)

    def sent(x):
        return funcol.broadcast(x.sum(), 0, group)

    compiled = thunder.jit(reduced)
    try:
        assert_equal(compiled(numbers(0, 3)), reduced(numbers(0, 3)))
        if dist.get_rank():
            assert_differs(sent, "`broadcast 0 ", "`all_reduce sum ", line="funcol.broadcast")
        else:
            try:
                compiled(numbers(0, 4))
            except (CollectivesDiffer, RuntimeError) as error:
                assert isinstance(error, CollectivesDiffer) or "imed out" in str(error) or "losed" in str(error), error
            else:
                raise AssertionError("no error")
            dist.barrier()
    finally:
        agreement.SECONDS = before


def other_size_among_several() -> None:
    def program(x):
        tensors = [torch.ones(3), torch.ones(2 + dist.get_rank())]
        dist.all_reduce_coalesced(tensors)
        return x + tensors[1].sum()

    assert_differs(program, "collective 1", "12 bytes 8 bytes", "12 bytes 12 bytes", line="all_reduce_coalesced")


def several_programs() -> None:
    """Programs are compared one by one, in two groups."""
    group = dist.new_group([0, 1])

    def program(x, group):
        dist.all_reduce(x, group=group)
        dist.all_reduce(x)
        return x

    compiled = thunder.jit(program)
    for size in (2, 3, 2, 4):
        for chosen in (group, None):
            assert_equal(compiled(numbers(0, size), chosen), program(numbers(0, size), chosen))
