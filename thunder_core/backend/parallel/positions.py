"""The position of this rank in the sequence of a process group's collectives.

PyTorch counts the collectives of a group, but gloo also counts messages from one rank to another, which the other ranks
do not see. Methods that send messages are therefore replaced by methods that also record by how much they increase
PyTorch's count. The position is PyTorch's count without these increases.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

import torch.distributed as dist

MESSAGES = ("send", "recv", "recv_anysource", "monitored_barrier")  # methods whose counts differ between ranks
_messages: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # by group: by how much messages advanced its count


def sequence_number(group: Any) -> int:
    """Return PyTorch's count of the collectives of a group; 0 for a group that does not count."""
    try:
        return int(group._get_sequence_number_for_group())
    except (RuntimeError, NotImplementedError, TypeError):
        return 0


def position_of(group: object) -> int:
    """Return the number of collectives of a group that this rank has called; 0 for a group that does not count."""
    number = sequence_number(group)
    return number - _messages[group] if _messages and group in _messages else number


def count_messages(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of process groups that also counts by how much it advances PyTorch's count."""

    @wraps(method)
    def call_counted(self: object, *args: Any, **kwargs: Any) -> Any:
        before = sequence_number(self)
        try:
            return method(self, *args, **kwargs)
        finally:
            with suppress(TypeError):  # a group without weak references
                _messages[self] = _messages.get(self, 0) + sequence_number(self) - before

    return call_counted


if dist.is_available():
    for name in MESSAGES:
        setattr(dist.ProcessGroup, name, count_messages(getattr(dist.ProcessGroup, name)))
