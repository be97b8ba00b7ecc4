"""Send a module to the process of a trial, through a pipe that only the two processes can open.

The module is not written to a file, so no other process can replace it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from threading import Thread
from typing import Any, ClassVar

from thunder_core.foundation.errors import WrongInputs

CANNOT_BE_SENT = "the model cannot be sent to another process that tries a candidate"


class Copying(ForkingPickler):
    """A pickler that copies tensors into the message. PyTorch's own pickler needs shared memory."""

    _extra_reducers: ClassVar[dict[type, Callable[[Any], object]]] = {}


def message_of(subject: object) -> memoryview:
    """Return the message with a module and its inputs; raise `WrongInputs` for a module that cannot be sent."""
    try:
        return Copying.dumps(subject)
    except Exception as error:  # the classes of its attributes may raise any exception
        raise WrongInputs(
            f"{CANNOT_BE_SENT}: {error}",
            fix="define its class at the top level of a module, without lambdas among its attributes",
        ) from error


@contextmanager
def offer(message: memoryview) -> Iterator[int]:
    """Yield a file descriptor from which a child process that inherits it can receive the message."""
    parent_end, child_end = Pipe()
    sender = Thread(target=_send, args=(parent_end, message), daemon=True)
    with parent_end:
        with child_end:
            sender.start()
            yield child_end.fileno()
        sender.join()  # ends at once: the other end is closed, even if the child has not read the message


def _send(connection: Any, message: memoryview) -> None:
    with suppress(OSError):  # the child process has ended without reading the whole message
        connection.send_bytes(message)


def receive(descriptor: int) -> Any:
    """Return the object that is offered at a file descriptor; raise `WrongInputs` if its class cannot be imported."""
    with Connection(descriptor) as connection:
        try:
            return connection.recv()
        except Exception as error:  # the import of its class may raise any exception
            raise WrongInputs(
                f"{CANNOT_BE_SENT}: {error}",
                fix="define its class in a module that can be imported, not in the script that is run or in a session",
            ) from error
