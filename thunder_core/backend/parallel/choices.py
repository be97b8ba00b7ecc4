"""Choices that depend on measurements, shared by the ranks: all ranks use the choice of the rank that chose first.

Measurements vary, so ranks that choose kernels by measurements of their own may have different programs. The first rank
that makes a choice writes the choice to the store of the default process group, and all other ranks read it. No rank
waits for another, so a program that only some ranks trace cannot hang.

A rank may be unable to choose, because it has no time to measure. Then no rank has a choice for the same request. A
request is identified by the number of collectives before it, and by the number of earlier requests after the same
collective. The first rank that can choose for a later request chooses for all later requests.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import torch.distributed as dist

from thunder_core.backend.parallel.creations import number_of
from thunder_core.backend.parallel.ledger import RunKey
from thunder_core.backend.parallel.positions import position_of

PREFIX = "thunder_choices"
UNKNOWN = "unknown"  # stands in the store for a choice that a rank could not make


@dataclass
class Choices:
    """The choices that the ranks share in a store.

    `requests` maps a choice's name to this rank's last request for it.
    """

    store: Any
    requests: dict[str, RunKey] = field(default_factory=dict)

    def next_request(self, name: str, position: int) -> RunKey:
        """Return the key of this rank's next request for a choice, at its position in the sequence of collectives."""
        last = self.requests.get(name)
        attempt = last.attempt + 1 if last is not None and last.position == position else 0
        self.requests[name] = request = RunKey(position, attempt)
        return request

    def at(self, name: str, request: RunKey, choose: Callable[[], str | None]) -> str:
        """Return the choice of all ranks for a request, or `UNKNOWN`; raise `RuntimeError` if the store is gone."""
        key = f"{name}/{request}"
        if self.store.check([key]):
            return str(self.store.get(key).decode())
        if self.store.check([name]):
            chosen = self.store.get(name).decode()
        elif (own := choose()) is not None:
            chosen = self.store.compare_set(name, "", own).decode()
        else:
            chosen = UNKNOWN
        return str(self.store.compare_set(key, "", chosen).decode())


_choices: WeakKeyDictionary[Any, Choices] = WeakKeyDictionary()


def shared_choice(name: str, choose: Callable[[], str | None]) -> str | None:
    """Return the choice that a rank made first under a name; None if a rank could not choose for this request.

    `choose` returns a non-empty choice of this rank, or None if this rank cannot choose now. A process without other
    ranks chooses by itself. A rank that cannot reach the store also chooses by itself: the rank with the store has
    ended, and no collective of all ranks can follow.
    """
    choices = choices_of_ranks()
    if choices is None:
        return choose()
    request = choices.next_request(name, position_of(dist.group.WORLD))
    choose_once = cache(choose)
    with suppress(RuntimeError):
        chosen = choices.at(name, request, choose_once)
        return None if chosen == UNKNOWN else chosen
    return choose_once()


def choices_of_ranks() -> Choices | None:
    """Return the choices in the store of the default process group; None for a process without other ranks."""
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return None
    group, c10d = dist.group.WORLD, dist.distributed_c10d
    if group not in _choices:
        prefix = f"{PREFIX}/{number_of(group)}"
        store: Any = c10d.PrefixStore(prefix, c10d._get_default_store())
        _choices[group] = Choices(store)
    return _choices[group]
