"""Checks of ranks that compile different programs, run on each rank."""

# mypy: disable-error-code="no-untyped-call,no-untyped-def"

from __future__ import annotations

import gc
import linecache
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

import thunder_core as thunder
from tests.distributed.collectives.collectives import numbers
from tests.distributed.comparison import assert_equal
from thunder_core.backend.runtime import agreement
from thunder_core.foundation.errors import CollectivesDiffer

PATIENCE = 60.0  # seconds for which a rank waits in vain for another rank; a busy machine delays ranks by less


def patiently(name: str, *arguments: Any) -> None:
    """Run a check in which the ranks compare their programs for `PATIENCE` seconds."""
    with mock.patch.object(agreement, "WAIT_SECONDS", PATIENCE):
        globals()[name](*arguments)


def assert_differs(program: Callable[..., Any], *texts: str, line: str, compiled: Any = None) -> None:
    """Assert that a program is stopped on this rank at a line, and the error names the collectives of both ranks."""
    try:
        (compiled or thunder.jit(program))(numbers(0, 4))
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


def other_size_of_an_uneven_part() -> None:
    def program(x):
        y = torch.ones(1 + dist.get_rank())
        dist.reduce_scatter(y, [torch.ones(1), torch.ones(2 + dist.get_rank())])
        return x + y.sum()

    assert_differs(program, "4 bytes 8 bytes`", "4 bytes 12 bytes`", line="dist.reduce_scatter")


def other_reduction_and_dtype() -> None:
    def program(x):
        y = x.to(torch.float32 if dist.get_rank() else torch.float64)
        return funcol.all_reduce(y, "max" if dist.get_rank() else "sum", dist.group.WORLD)

    assert_differs(program, "`all_reduce sum float64 32 bytes`", "`all_reduce max float32 16 bytes`", line="funcol")


def one_collective_less() -> None:
    def program(x):
        dist.all_reduce(x)
        return funcol.all_reduce(x, "sum", dist.group.WORLD) if dist.get_rank() else x

    assert_differs(program, "collective 2", "missing on rank 0", line="all_reduce")


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
    """The collective waits for a rank that is later than the time limit of the comparison."""
    before, agreement.WAIT_SECONDS = agreement.WAIT_SECONDS, 0.2
    try:
        compiled = thunder.jit(lambda x: funcol.all_reduce(x, "sum", dist.group.WORLD))
        time.sleep(1.0 * dist.get_rank())
        assert_equal(compiled(numbers(0, 5)), numbers(0, 5) * 2 + (100 if dist.get_rank() == 0 else -100))
    finally:
        agreement.WAIT_SECONDS = before


def rank_that_traces_again() -> None:
    """One rank traces again for another size; its collectives are the same, so no rank waits."""

    def program(x):
        total = x.sum()
        dist.all_reduce(total)
        return total * x

    compiled = thunder.jit(program)
    start = time.monotonic()
    for call in range(3):
        x = numbers(call, 3 + call * dist.get_rank())
        assert_equal(compiled(x.clone()), program(x.clone()))
    assert time.monotonic() - start < PATIENCE
    assert (thunder.cache_misses(compiled) > 1) is (dist.get_rank() == 1)


def rank_that_traces_again_for_a_size_that_varies() -> None:
    """A symbolic program of one rank serves a size for which the other rank traces, with the same collectives."""

    def program(x, flag):
        dist.all_reduce(x)
        return x + flag

    compiled = thunder.jit(program)
    start = time.monotonic()
    for size in (3, 4, 5):
        flag = 2.0 if size == 5 and dist.get_rank() else True
        assert_equal(compiled(numbers(0, size), flag), program(numbers(0, size), flag))
    assert time.monotonic() - start < PATIENCE
    assert thunder.cache_misses(compiled) == 2 + dist.get_rank()


def sent_in(group):
    return lambda x: funcol.broadcast(x.sum(), 0, group)


def reduced_in(group):
    return lambda x: funcol.all_reduce(x.sum(), "sum", group)


def known_program_against_another() -> None:
    """One rank traces a program again while the other traces another program."""
    group = dist.new_group([0, 1])
    compiled = thunder.jit(reduced_in(group))
    assert_equal(compiled(numbers(0, 3)), reduced_in(group)(numbers(0, 3)))
    texts = "`broadcast 0 ", "`all_reduce sum "
    if dist.get_rank():
        assert_differs(sent_in(group), *texts, line="funcol.broadcast")
    else:
        assert_differs(reduced_in(group), *texts, line="funcol.all_reduce", compiled=compiled)


def cached_program_against_another(traces_known: bool) -> None:
    """One rank traces another program, or a known program, while the other rank waits in a program that it has."""
    start = time.monotonic()
    name = difference_from_cached_program(traces_known)
    if dist.get_rank():  # the other rank waits until the connection ends, as at the end of a process
        dist.destroy_process_group(torch._C._distributed_c10d._resolve_process_group(name))
        gc.collect()
    dist.barrier()
    assert time.monotonic() - start < PATIENCE


def difference_from_cached_program(traces_known: bool) -> str:
    """The name of a group in which one rank runs a program that it has, and the other a program that it traces."""
    group = dist.new_group([0, 1])
    reduced, sent = thunder.jit(reduced_in(group)), thunder.jit(sent_in(group))
    for compiled, function in ((reduced, reduced_in), (sent, sent_in)):
        assert_equal(compiled(numbers(0, 3)), function(group)(numbers(0, 3)))
    start = time.monotonic()
    try:
        if dist.get_rank():
            (sent if traces_known else thunder.jit(sent_in(group)))(numbers(0, 4))
        else:
            reduced(numbers(0, 3))
    except CollectivesDiffer as error:
        assert all(text in str(error) for text in ("`broadcast 0 ", "`all_reduce sum ", "collective 1")), error
    else:
        raise AssertionError("no error")
    assert time.monotonic() - start < PATIENCE
    return str(group.group_name)


class Reduces(torch.nn.Module):
    """A module that reduces in one of two ways."""

    def forward(self, x, sums):
        if sums:
            return funcol.all_reduce(x, "sum", dist.group.WORLD) * 2
        return funcol.all_reduce(x, "max", dist.group.WORLD) * 2


def programs_of_an_artifact(folder: str) -> None:
    """Ranks that choose different programs of an artifact raise an error before they communicate."""
    compiled = thunder.jit(Reduces())
    for sums in (True, False):
        compiled(numbers(0, 4), sums)
    if dist.get_rank() == 0:
        thunder.save(compiled, folder)
    dist.barrier()
    loaded = thunder.load(folder, Reduces(), strict=True)
    texts = "`all_reduce sum float64 32 bytes`", "`all_reduce max float64 32 bytes`"
    assert_differs(loaded, *texts, line="funcol", compiled=lambda x: loaded(x, dist.get_rank() == 0))
    again = thunder.load(folder, Reduces(), strict=True)
    for sums in (True, False, True):
        assert_equal(again(numbers(0, 4), sums), Reduces()(numbers(0, 4), sums))


def program_in_eager_on_one_rank() -> None:
    """Nobody waits for a rank that calls the collectives of a program in eager PyTorch."""
    group = dist.new_group([0, 1])
    reduced, sent = reduced_in(group), sent_in(group)
    compiled = thunder.jit(reduced), thunder.jit(sent)
    for program, function in zip(compiled, (reduced, sent), strict=True):
        assert_equal(program(numbers(0, 3)), function(numbers(0, 3)))
    start = time.monotonic()
    for size in (4, 5):
        mixed = (reduced, compiled[1]) if dist.get_rank() else (compiled[0], sent)
        for program, function in zip(mixed, (reduced, sent), strict=True):
            assert_equal(program(numbers(0, size)), function(numbers(0, size)))
    assert time.monotonic() - start < PATIENCE


def messages_do_not_shift_programs() -> None:
    """Two of four ranks exchange messages, in eager PyTorch and in a program, before all compare programs."""

    def exchanged(x):
        if dist.get_rank() == 0:
            dist.send(x, 1)
        elif dist.get_rank() == 1:
            dist.recv(x, 0)
        return x * 2

    def program(x):
        return funcol.all_reduce(x, "sum", dist.group.WORLD)

    compiled, first = thunder.jit(program), thunder.jit(exchanged)
    start = time.monotonic()
    for size in (2, 3):
        exchanged(numbers(0, size))
        first(numbers(0, size))
        assert_equal(compiled(numbers(0, size)), program(numbers(0, size)))
    x = numbers(0, 4 + dist.get_rank() // 3)
    total = thunder.jit(lambda x: funcol.all_reduce(x.sum(), "sum", dist.group.WORLD))
    for part in (numbers(0, 4), x, x[1:]):
        total(part)  # the last rank traces again, for its own sizes
    assert time.monotonic() - start < PATIENCE
    assert_differs(
        lambda x: funcol.all_reduce(x, "max" if dist.get_rank() == 2 else "sum", dist.group.WORLD),
        *("`all_reduce max ", "`all_reduce sum "),
        line="funcol",
    )


def programs_in_a_group_made_again() -> None:
    """One rank has run a program in an earlier group with the same store, and the other rank only eager PyTorch.

    PyTorch's gloo itself cannot always connect in a store that an earlier group has used, so only Thunder uses it.
    """
    c10d: Any = dist.distributed_c10d
    store = c10d.PrefixStore("made again", c10d._get_default_store())
    with mock.patch.object(c10d, "_get_process_group_store", lambda group: store):
        run_by_one_rank(dist.new_group([0, 1]))
        again = dist.new_group([0, 1])
        start = time.monotonic()
        assert_equal(thunder.jit(sent_in(again))(numbers(0, 3)), sent_in(again)(numbers(0, 3)))
        assert time.monotonic() - start < PATIENCE
        program = (reduced_in if dist.get_rank() else sent_in)(again)
        assert_differs(program, "`broadcast 0 ", "`all_reduce sum ", line="funcol.")
        dist.destroy_process_group(again)


def run_by_one_rank(group: Any) -> None:
    """Compile a program on one rank alone, and destroy its group."""
    before, agreement.WAIT_SECONDS = agreement.WAIT_SECONDS, 0.2
    try:
        reduced = reduced_in(group)
        (reduced if dist.get_rank() else thunder.jit(reduced))(numbers(0, 3))
    finally:
        agreement.WAIT_SECONDS = before
    dist.barrier()
    dist.destroy_process_group(group)


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
