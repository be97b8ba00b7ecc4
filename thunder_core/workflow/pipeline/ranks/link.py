"""The link between the ranks of `thunder` commands that several processes run together.

The first rank sends commands over the default process group, and an error on any rank ends all ranks.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import torch
import torch.distributed as dist

from thunder_core.backend.parallel.responder import show_fatal_signals
from thunder_core.foundation.errors import RankFailed, ThunderError
from thunder_core.foundation.errors.tree import message_line
from thunder_core.workflow.pipeline.ranks.packing import pack, unpack
from thunder_core.workflow.pipeline.ranks.watch import FAILURE, Watch, rank_error, report_failure, reported_failure
from thunder_core.workflow.pipeline.request.launch import Launch

ERROR_TIME_LIMIT = 3.0  # seconds that a rank waits for the error of another rank
QUERY_PERIOD = 0.02  # seconds between two queries of the store


@contextmanager
def delay_interrupts() -> Iterator[None]:
    """Delay an interrupt of this rank to the end of the block. Its `Watch` interrupts it when another rank fails.

    PyTorch sends an object in several collectives. A rank that is interrupted between two of these collectives would
    call different collectives than the other ranks.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


@dataclass
class Link:
    """The default process group of the ranks; the first rank sends commands, and the others receive them.

    Tensors on a GPU arrive on the `device` of the receiving rank, and tensors on the CPU on the CPU. `others_receive`
    says whether the other ranks wait for a command. Only then may this rank send one: if ranks call different
    collectives, gloo ends the processes without an error message.
    """

    launch: Launch
    device: torch.device
    others_receive: bool = False

    def send(self, command: tuple[Any, ...] | None) -> None:
        """Send a command to the other ranks; None ends them."""
        self.others_receive = False
        packed = [pack(command)]
        with delay_interrupts():
            dist.broadcast_object_list(packed, 0)

    def receive(self) -> tuple[Any, ...] | None:
        """Receive the next command of the first rank; raise `RankFailed` if the first rank has failed."""
        received: list[Any] = [None]
        with delay_interrupts():
            dist.broadcast_object_list(received, 0)
        command: tuple[Any, ...] | None = unpack(received[0], self.device)
        if command is not None and command[0] == FAILURE:
            raise rank_error(0, command[1])
        return command

    def receive_from_first(self) -> Any:
        """Receive a command with one argument, and return the argument."""
        command = self.receive()
        assert command is not None
        return command[1]

    def finish(self) -> None:
        """End the other ranks after the artifact was written; ignore the error of a rank that has already ended."""
        with suppress(RuntimeError):
            self.send(None)

    def gather(self, value: object) -> list[Any]:
        """Return the values of all ranks in order on the first rank, and an empty list on the other ranks."""
        values: list[Any] | None = None if self.launch.follows else [None] * self.launch.size
        packed = pack(value)
        with delay_interrupts():
            dist.gather_object(packed, values, 0)
        return [unpack(content, self.device) for content in values or ()]


@contextmanager
def link_ranks(launch: Launch, device: torch.device) -> Iterator[Link]:
    """Link the ranks during the block; an error of any rank ends all ranks.

    The remaining ranks raise `RankFailed` with the error, unless the launcher ends them earlier. The error of a rank
    other than the first names the rank.
    """
    if device.type == "cuda":
        torch.cuda.set_device(launch.local_rank)
    creates_group = not dist.is_initialized()
    if creates_group:
        dist.init_process_group("gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl")
    show_fatal_signals()
    link, store = Link(launch, device), store_of_run()
    watch = Watch(launch, store.clone(), lambda: link.others_receive)
    watch.start()
    try:
        yield link
    except BaseException as error:
        try:
            watch.end()
        except KeyboardInterrupt:  # the watch has already sent the interrupt
            watch.end()
        failure = failure_on(store, error, link, watch)
        raise failure from (None if failure is error else error)
    watch.end()
    if creates_group:
        dist.destroy_process_group()


def store_of_run() -> Any:
    """Return a part of the default process group's store that no earlier run of these processes has used."""
    names = [uuid4().hex]
    dist.broadcast_object_list(names, 0)
    c10d: Any = dist.distributed_c10d
    return c10d.PrefixStore(names[0], dist.distributed_c10d._get_default_store())


def failure_on(store: object, error: BaseException, link: Link, watch: Watch) -> BaseException:
    """Return the error that this rank raises: its own error, or the error of another rank that failed first."""
    if isinstance(error, RankFailed):
        return error
    failure = watch.failure or failure_of_other(store, error, link.launch)
    if failure is not None:
        return failure
    share_error(store, error, link)
    if link.launch.follows and isinstance(error, ThunderError):
        error.what = f"rank {link.launch.rank}: {error.what}"
    return error


def share_error(store: object, error: BaseException, link: Link) -> None:
    """Report the error of this rank to the other ranks, unless another rank failed first."""
    text = str(error) if isinstance(error, ThunderError) else f"{type(error).__name__}: {message_line(error)}"
    with suppress(RuntimeError):
        report_failure(store, link.launch.rank, text)
        if link.others_receive and not link.launch.follows:
            link.send((FAILURE, text))


def failure_of_other(store: object, error: BaseException, launch: Launch) -> RankFailed | None:
    """Return the error of another rank that made a collective of this rank fail; None if this rank failed by itself."""
    if isinstance(error, ThunderError) or not isinstance(error, RuntimeError):
        return None
    failure = await_failure(store, launch)
    if failure is None and is_connection_error(error):
        return RankFailed(
            f"another rank has ended without an error ({message_line(error)})",
            fix="look for the cause, such as a lack of memory, on stderr of the other ranks and in the system log; "
            "nothing was written",
        )
    return failure


def is_connection_error(error: BaseException) -> bool:
    """Whether an error means that another rank cannot be reached."""
    text = str(error).lower()
    return isinstance(error, dist.DistError) or any(word in text for word in ("gloo", "nccl", "connection", "socket"))


def await_failure(store: Any, launch: Launch) -> RankFailed | None:
    """Wait `ERROR_TIME_LIMIT` seconds for another rank's error; return None if there is none or the store is gone."""
    end = time.monotonic() + ERROR_TIME_LIMIT
    with suppress(RuntimeError):
        while time.monotonic() < end and not store.check([FAILURE]):
            time.sleep(QUERY_PERIOD)
        return reported_failure(store, launch.rank)
    return None
