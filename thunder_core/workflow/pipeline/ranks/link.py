"""The link between ranks: the process group, the commands of the first rank, and errors that end all ranks."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from thunder_core.foundation.errors import RankFailed, ThunderError
from thunder_core.foundation.errors.tree import message_line
from thunder_core.workflow.pipeline.ranks.packing import pack, unpack
from thunder_core.workflow.pipeline.request.launch import Launch

FAILURE = "thunder_failure"  # the key of the first error in the store of the process group
PATIENCE = 3.0  # seconds that a rank waits for the error of another rank
PAUSE = 0.02  # seconds between two queries of the store


@dataclass
class Link:
    """The default process group of the ranks; the first rank sends commands, and the others receive them.

    Tensors arrive on the `device` of the receiving rank, or on the CPU if they come from there. The first rank is
    `busy` while it carries out its own command.
    """

    launch: Launch
    device: torch.device
    busy: bool = False

    def send(self, command: tuple[Any, ...] | None) -> None:
        """Send a command to the other ranks; None ends them."""
        dist.broadcast_object_list([pack(command)], 0)

    def receive(self) -> tuple[Any, ...] | None:
        """Receive the next command of the first rank; raise `RankFailed` if the first rank has failed."""
        received: list[Any] = [None]
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

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks in order on the first rank, and an empty list on the other ranks."""
        values: list[Any] | None = None if self.launch.follows else [None] * self.launch.size
        dist.gather_object(pack(value), values, 0)
        return [unpack(content, self.device) for content in values or ()]


@contextmanager
def link_ranks(launch: Launch, device: torch.device) -> Iterator[Link]:
    """Link the ranks while the block runs; an error of one rank ends all ranks.

    The other ranks raise `RankFailed` with the error, unless the launcher ends them earlier. An error that is not from
    the first rank names its rank.
    """
    if device.type == "cuda":
        torch.cuda.set_device(launch.local_rank)
    begins = not dist.is_initialized()
    if begins:
        dist.init_process_group("gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl")
    store: Any = dist.distributed_c10d._get_default_store()
    link = Link(launch, device)
    try:
        yield link
    except RankFailed:
        raise
    except BaseException as error:
        failure = failure_of_other(store, error, launch)
        if failure is not None:
            raise failure from error
        tell(store, error, link)
        if launch.follows and isinstance(error, ThunderError):
            error.what = f"rank {launch.rank}: {error.what}"
        raise
    if begins:
        dist.destroy_process_group()


def tell(store: Any, error: BaseException, link: Link) -> None:
    """Report the error of this rank to the other ranks, unless another rank failed first."""
    text = str(error) if isinstance(error, ThunderError) else f"{type(error).__name__}: {message_line(error)}"
    with suppress(RuntimeError):
        if not (link.launch.follows or link.busy):
            link.send((FAILURE, text))
        store.compare_set(FAILURE, "", json.dumps({"rank": link.launch.rank, "error": text}))


def rank_error(rank: int, text: str) -> RankFailed:
    """Return the error that the other ranks raise if a rank failed."""
    return RankFailed(f"rank {rank} failed: {text}", fix="fix the cause that the error names; nothing was written")


def failure_of_other(store: Any, error: BaseException, launch: Launch) -> RankFailed | None:
    """Return the error of another rank, if it interrupted a collective of this rank; None for an error of this rank."""
    if isinstance(error, ThunderError) or not isinstance(error, RuntimeError):
        return None
    content = await_value(store, FAILURE)
    if content is not None and (failure := json.loads(content))["rank"] != launch.rank:
        return rank_error(failure["rank"], failure["error"])
    if content is None and is_of_connection(error):
        return RankFailed(
            f"another rank has ended without an error ({message_line(error)})",
            fix="look for the cause, such as a lack of memory, on stderr of the other ranks and in the system log; "
            "nothing was written",
        )
    return None


def is_of_connection(error: BaseException) -> bool:
    """Whether an error means that another rank cannot be reached."""
    text = str(error).lower()
    return isinstance(error, dist.DistError) or any(word in text for word in ("gloo", "nccl", "connection", "socket"))


def await_value(store: Any, key: str) -> str | None:
    """Wait `PATIENCE` seconds for the value of a key; return None if the key is not set or the store is gone."""
    end = time.monotonic() + PATIENCE
    with suppress(RuntimeError):
        while time.monotonic() < end:
            if store.check([key]):
                return str(store.get(key).decode())
            time.sleep(PAUSE)
    return None
