"""Choices that depend on measurements, shared by the ranks: all ranks take the choice of the rank that chose first.

Measurements vary, so ranks that choose kernels by measurements of their own may have different programs. The first rank
that makes a choice writes the choice to the store of the default process group, and all other ranks read it. No rank
waits for another, so a program that only some ranks trace cannot hang.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch.distributed as dist

PREFIX = "thunder_choices"


def shared_choice(name: str, choose: Callable[[], str]) -> str:
    """Return the choice that a rank made first under a name; `choose` returns a choice of this rank, not empty.

    A process without other ranks chooses by itself. So does a rank that cannot reach the store: then the rank with the
    store has ended, and no collective of all ranks can follow.
    """
    store = store_of_ranks()
    if store is None:
        return choose()
    with suppress(RuntimeError):
        if store.check([name]):
            return str(store.get(name).decode())
    own = choose()
    with suppress(RuntimeError):
        return str(store.compare_set(name, "", own).decode())
    return own


def store_of_ranks() -> Any:
    """Return the part of the default process group's store for choices; None for a process without other ranks."""
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return None
    c10d: Any = dist.distributed_c10d
    return c10d.PrefixStore(PREFIX, dist.distributed_c10d._get_default_store())
