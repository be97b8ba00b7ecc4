"""A rank that waits in a program while the other rank waits elsewhere or has ended: each case runs in two processes."""

# mypy: disable-error-code="no-untyped-call,no-untyped-def"

from __future__ import annotations

import os
import threading
import time
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

import thunder_core as thunder
from thunder_core.backend.parallel import deadlocks, responder

LATE = 3.0  # seconds, in which a rank asks several times where the late rank is


def total(x):
    return funcol.all_reduce(x, "sum", dist.group.WORLD)  # the extra step


def steps(ahead: int, extra: int = 1):
    """Run two steps, and the extra steps of the rank that is ahead."""
    compiled = thunder.jit(total)
    for _ in range(2 + extra * (dist.get_rank() == ahead)):
        compiled(torch.ones(3)).sum()
    return compiled


def other_in_eager_collective(ahead: int) -> None:
    steps(ahead)
    dist.barrier()  # eager


def other_in_eager_collective_of_the_same_kind(ahead: int) -> None:
    steps(ahead)
    dist.all_reduce(torch.ones(500))  # eager


def other_in_eager_collective_of_the_same_kind_with_details(ahead: int) -> None:
    other_in_eager_collective_of_the_same_kind(ahead)


def other_in_a_later_collective(ahead: int) -> None:
    """Without an error, gloo lets a rank leave a collective of fewer elements, in which the other rank then waits."""
    steps(ahead)
    if dist.get_rank() != ahead:
        dist.all_reduce(torch.ones(1))  # eager
        dist.barrier()  # eager


def other_in_another_group(ahead: int) -> None:
    group = dist.new_group([0, 1])
    steps(ahead)
    dist.barrier(group)  # eager


def other_in_a_program_of_another_group(ahead: int) -> None:
    group = dist.new_group([0, 1])
    other = thunder.jit(lambda x: funcol.all_reduce(x, "max", group))
    other(torch.ones(3)).sum()
    steps(ahead)
    other(torch.ones(3)).sum()


def other_in_another_known_program(ahead: int) -> None:
    other = thunder.jit(lambda x: funcol.broadcast(x, 0, dist.group.WORLD))
    other(torch.ones(3)).sum()
    steps(ahead)
    other(torch.ones(3)).sum()


def other_has_ended(ahead: int) -> None:
    steps(ahead)


def other_has_raised(ahead: int) -> None:
    compiled = steps(ahead, 0)
    if dist.get_rank() != ahead:
        raise SystemExit(3)
    compiled(torch.ones(3)).sum()


def other_has_raised_in_an_exception_handler(ahead: int) -> None:
    """The other rank catches its error, and waits for all ranks."""
    compiled = steps(ahead, 0)
    try:
        if dist.get_rank() != ahead:
            raise ValueError
        compiled(torch.ones(3)).sum()
    finally:
        dist.barrier()


def both_in_eager_pytorch(ahead: int) -> None:
    """No program runs, but the ranks have run one in this group before."""
    steps(ahead, 0)
    if dist.get_rank() == ahead:
        dist.all_reduce(torch.ones(3))  # eager
    else:
        dist.barrier()  # eager


def both_in_eager_pytorch_of_two_groups(ahead: int) -> None:
    group = dist.new_group([0, 1])
    steps(ahead, 0)
    dist.barrier(None if dist.get_rank() == ahead else group)  # eager


def other_waits_for_a_work(ahead: int) -> None:
    steps(ahead, 0)
    if dist.get_rank() == ahead:
        dist.barrier()  # eager
    work = dist.all_reduce(torch.ones(3), async_op=True)
    work.wait()  # eager


def late_in_eager_pytorch(ahead: int) -> None:
    """The other rank only comes late, and a thread of it waits in another group meanwhile, which is no deadlock."""
    group = dist.new_group([0, 1])
    steps(ahead, 0)
    beside = threading.Thread(target=dist.barrier, args=(group,))
    if dist.get_rank() != ahead:
        beside.start()
        time.sleep(LATE)
    dist.all_reduce(torch.ones(3))
    if dist.get_rank() == ahead:
        beside.start()
    beside.join()


def late(ahead: int) -> None:
    """The other rank only comes late, which is no deadlock."""
    compiled = steps(ahead, 0)
    if dist.get_rank() != ahead:
        time.sleep(LATE)
    compiled(torch.ones(3)).sum()
    dist.barrier()


def rank_of_another_group_is_late(ahead: int) -> None:
    """One of three ranks is late in a group of two, so the first rank of this group is late for the others."""
    world, pair = dist.group.WORLD, dist.new_group([0, 2])

    def program(x):
        y = funcol.all_reduce(x, "sum", world)
        return funcol.all_reduce(y, "sum", pair) if dist.get_rank() != 1 else y

    compiled = thunder.jit(program)
    for step in range(3):
        if step == 2 and dist.get_rank() == 2:
            total(torch.ones(3)).sum()
            time.sleep(LATE)
            funcol.all_reduce(torch.ones(3), "sum", pair).sum()
        else:
            compiled(torch.ones(3)).sum()
    dist.barrier()


def main(case: str, ahead: int, rank: int, size: int, folder: str) -> None:
    """Run a case on one rank; the errors of the process are in a file."""
    errors = Path(folder, f"errors-{rank}").open("w")  # noqa: SIM115
    os.dup2(errors.fileno(), 2)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if case.endswith("_with_details"):
        dist.set_debug_level(dist.DebugLevel.DETAIL)  # as TORCH_DISTRIBUTED_DEBUG=DETAIL
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size, timeout=timedelta(seconds=300)
    )
    deadlocks.PATIENCE, deadlocks.PROOF, deadlocks.QUESTION_PAUSE, deadlocks.GRACE = 0.6, 0.3, 0.15, 0.5
    deadlocks.QUIET, responder.PAUSE = 1.0, 0.1
    globals()[case](ahead)
