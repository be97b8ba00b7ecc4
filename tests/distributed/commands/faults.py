"""Faults of a rank in each stage of a command, run on each rank: the other rank notes how its command ended."""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,attr-defined"

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from tests.distributed.commands.commands import QUICK, run, small_model
from thunder_core.backend.runtime import agreement
from thunder_core.foundation.errors import OperationFailed, RankFailed, ThunderError
from thunder_core.workflow.pipeline.ranks import link, stalls, watch
from thunder_core.workflow.pipeline.ranks.link import Link, link_ranks
from thunder_core.workflow.pipeline.request.launch import Launch

RANK = "thunder_core.workflow.pipeline.ranks.rank.Rank."
SENTENCE = "this rank cannot compute"
NOTED = "told.json"  # the file in which a rank notes how its command ended


def raise_error(*args: Any, **options: Any) -> None:
    raise OperationFailed(SENTENCE, fix="do not ask it to")


def end_process(*args: Any, **options: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop_process(folder: str) -> None:
    """Stop this process; another process ends it after the other rank has recorded the end of its command."""
    waiting = f"for second in $(seq 60); do [ -e '{folder}/{NOTED}' ] && break; sleep 1; done"
    subprocess.Popen(["sh", "-c", f"{waiting}; kill -KILL {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)


def loop(*args: Any, **options: Any) -> None:
    """Compute without end."""
    while True:
        pass


class Fault(NamedTuple):
    """The failing rank, the function, the number of the call and the kind of the failure, and the expected output of
    the other rank.

    `skips` are options that leave out the stages before the fault, which the case does not need.
    """

    rank: int
    function: str
    fail: Callable[..., None]
    printed: str
    call: int = 1
    skips: tuple[str, ...] = ()


KILLED, SILENT = "another rank has ended without an error", "rank 1 failed: it has not responded for 3 seconds"
LOOPING = "rank 1 failed: it has computed for 3 seconds without progress in the step `{}`, at "
OF_FIRST, OF_SECOND = (f"rank {rank} failed: [TH0803] {SENTENCE}" for rank in range(2))
WRITE = "thunder_core.workflow.artifact.write."
TO_MEASURE = ("--no-validate",)
TO_WRITE = ("--no-validate", "--no-benchmark")
FAULTS = {
    "first rank raises while loading": Fault(
        0, "thunder_core.workflow.pipeline.ranks_opening.open_rank", raise_error, OF_FIRST
    ),
    "raises while compiling": Fault(1, f"{RANK}observe", raise_error, OF_SECOND),
    "is killed while compiling": Fault(1, f"{RANK}observe", end_process, KILLED),
    "does not respond while compiling": Fault(1, f"{RANK}observe", stop_process, SILENT),
    "raises while validating": Fault(1, f"{RANK}observe", raise_error, OF_SECOND, 2),
    "is killed while measuring": Fault(1, f"{RANK}step", end_process, KILLED, 2, TO_MEASURE),
    "raises while measuring": Fault(1, f"{RANK}step", raise_error, OF_SECOND, 2, TO_MEASURE),
    "first rank raises while measuring": Fault(0, f"{RANK}step", raise_error, OF_FIRST, 2, TO_MEASURE),
    "loops while measuring": Fault(1, f"{RANK}step", loop, LOOPING.format("step"), 2, TO_MEASURE),
    "first rank raises while writing": Fault(0, f"{WRITE}write_report", raise_error, OF_FIRST, skips=TO_WRITE),
    "first rank is killed while writing": Fault(0, f"{WRITE}write_report", end_process, KILLED, skips=TO_WRITE),
}


def failing(fault: Fault, folder: str, *, at_the_end: bool = False) -> Any:
    """Patch the function of a fault, which fails before or after its work."""
    owner, _, name = fault.function.rpartition(".")
    target = resolve_name(owner)
    original, calls = getattr(target, name), count(1)

    def replaced(*args: Any, **options: Any) -> Any:
        fails = next(calls) == fault.call
        if fails and not at_the_end:
            fault.fail(folder)
        result = original(*args, **options)
        if fails:
            fault.fail(folder)
        return result

    return mock.patch.object(target, name, replaced)


def end_with_the_error_of(kind: str, folder: str) -> None:
    """Run a command in which a rank fails; the other rank writes its output, and the time of the command."""
    fault, began = FAULTS[kind], time.monotonic()
    fails = dist.get_rank() == fault.rank
    end = os._exit

    def note(status: int, out: str, err: str) -> None:
        facts = {"status": status, "out": out, "err": err, "seconds": time.monotonic() - began}
        Path(folder, NOTED).write_text(json.dumps(facts))

    def end_noted(status: int) -> None:
        """End the process as the watch does, after the output was recorded."""
        assert isinstance(sys.stderr, io.StringIO)
        note(status, "", sys.stderr.getvalue())
        end(status)

    chosen = ("--recipe", "ddp", "--train", "--out", f"{folder}/artifact", *QUICK, *fault.skips)
    model = small_model(Path(folder))
    stops, loops = fault.fail is stop_process, fault.fail is loop
    quick = mock.patch.multiple(watch, SIGN_TIME_LIMIT=3.0, END_TIME_LIMIT=2.0, SIGN_PERIOD=0.2)
    with (
        quick if stops or loops else nullcontext(),
        mock.patch.object(link, "ERROR_TIME_LIMIT", 1.0),
        mock.patch.object(stalls, "STALL_TIME_LIMIT", 3.0 if loops else stalls.STALL_TIME_LIMIT),
        mock.patch.object(
            agreement, "WAIT_SECONDS", 2.0
        ),  # for which a rank compares its program with that of a killed rank
        failing(fault, folder) if fails else mock.patch.object(watch.os, "_exit", end_noted),
    ):
        status, out, err = run("optimize", model, *chosen)
    if fails:
        assert status == (RankFailed if loops else OperationFailed).status, err
        assert (fault.printed if loops else SENTENCE) in " ".join(err.split())
        end(1)
    note(status, out, err)


def interrupted_while_it_receives() -> None:
    """The watch reports the error of the first rank while the second rank waits for a command.

    The second rank then has called the same collectives as the first rank.
    """
    launch, send = Launch(dist.get_rank(), 2, dist.get_rank()), Link.send

    def send_late(self: Link, command: Any) -> None:
        time.sleep(0.5)
        send(self, command)

    quick = mock.patch.object(watch, "SIGN_PERIOD", 0.02), mock.patch.object(Link, "send", send_late)
    with (
        quick[0],
        quick[1],
        pytest.raises(ThunderError, match=SENTENCE),
        link_ranks(launch, torch.device("cpu")) as linked,
    ):
        if launch.follows:
            linked.receive()
        linked.others_receive = True
        raise_error()
    numbers: list[Any] = [None, None]
    dist.all_gather_object(numbers, dist.get_rank())
    assert numbers == [0, 1]


def killed_after_the_last_command(folder: str) -> None:
    """The second rank ends while the first writes the artifact, which is complete."""
    chosen = ("--recipe", "ddp", "--train", "--out", f"{folder}/artifact", *TO_WRITE, *QUICK)
    model = small_model(Path(folder))
    fault = Fault(1, f"{RANK}digests", end_process, "")
    with failing(fault, folder, at_the_end=True) if dist.get_rank() == 1 else nullcontext():
        status, _, err = run("optimize", model, *chosen)
    assert status == 0, err
