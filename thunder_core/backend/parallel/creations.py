"""The number of a process group among the groups that were created with its name and its store.

A group may be created again with the name and the store of an earlier group, for example after the default group was
destroyed. All ranks of a group create it together, but one rank may run programs in each of the groups, and another
rank only in the last. Therefore, each creation is counted when PyTorch registers the group, and not when a rank first
uses the group. The counts are in the store of the group, so that groups in other stores are counted separately. Groups
that were destroyed before this module was imported are not counted.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

import torch.distributed as dist

PREFIX = "thunder_creations"
_numbers: WeakKeyDictionary[Any, int] = WeakKeyDictionary()


def number_of(group: Any) -> int:
    """Return the number of a process group among the groups of its size with its name and store, starting at 1.

    Raises the errors of the store, and `KeyError` or `ValueError` for a group without a store.
    """
    if group not in _numbers:
        _numbers[group] = count_creation(
            dist.distributed_c10d._get_process_group_store(group), group.rank(), group.size()
        )
    return _numbers[group]


def count_creation(store: Any, rank: int, size: int) -> int:
    """Count the creation of a group by a rank in the store of the group, and return the count.

    Groups of different sizes are counted separately, because a rank may be in only some of them.
    """
    prefix = dist.distributed_c10d.PrefixStore(PREFIX, store)
    return int(prefix.add(f"{size}/{rank}", 1))


def count_creations(register: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """Return PyTorch's function that registers a new process group, which also counts the creation of the group."""

    @wraps(register)
    def register_and_count(group_name: object, group: object) -> None:
        register(group_name, group)
        count(group)

    return register_and_count


def count(group: Any) -> None:
    """Count the creation of a process group of several ranks.

    Ignore a group without a store, or with a failing store.
    """
    with suppress(RuntimeError, KeyError, ValueError, TypeError):
        if group.size() > 1:
            number_of(group)


if dist.is_available():
    _c10d: Any = dist.distributed_c10d
    for _group in list(_c10d._world.pg_names):
        count(_group)
    _c10d._register_process_group = count_creations(_c10d._register_process_group)
