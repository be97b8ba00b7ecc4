"""Sort a recipe's parts topologically by their traits, and by name where the traits allow several orders."""

from __future__ import annotations

import graphlib
import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from typing import Generic, TypeVar

from thunder_core.foundation.errors import RecipeConflict
from thunder_core.tracing.extension.traits import Part

Kind = TypeVar("Kind", bound=Part)
Edge = tuple[int, int]  # the indices of a member, and of a member that comes after it


@dataclass(frozen=True)
class Member(Generic[Kind]):
    """A part to be ordered, with its `owners`: the recipes and plug-ins that contain it.

    Members whose order no trait determines are ordered by their keys, which must differ.
    """

    part: Kind
    key: tuple[object, ...]
    owners: tuple[Part, ...] = ()


@dataclass(frozen=True)
class StatedOrder:
    """The order in which a recipe or a plug-in lists some members (by title). This order overrides their traits."""

    owner: Part
    titles: tuple[str, ...]


@dataclass(frozen=True)
class Placement(Generic[Kind]):
    """A part in its position, and the reasons for the position; without reasons, only its name determined it."""

    part: Kind
    reasons: tuple[str, ...]


@dataclass
class Arrangement(Generic[Kind]):
    """The members of a recipe in an order that does not depend on the order of the input.

    Raises `RecipeConflict`, with the responsible traits, if two members must each come before the other.
    """

    members: Sequence[Member[Kind]]
    stated_orders: Sequence[StatedOrder] = ()
    edge_reasons: dict[Edge, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.members = sorted(self.members, key=lambda member: member.key)
        for edge, reason in self._edges_of_stated_orders():
            self.edge_reasons.setdefault(edge, reason)
        decided = {frozenset(edge) for edge in self.edge_reasons}
        for edge, reason in self._edges_of_traits():
            if frozenset(edge) not in decided:
                self.edge_reasons.setdefault(edge, reason)

    def restricted_to(self, parts: Sequence[Kind]) -> Arrangement[Kind]:
        """Return the arrangement of the members that are among these parts."""
        part_ids = {id(part) for part in parts}
        return Arrangement([member for member in self.members if id(member.part) in part_ids], self.stated_orders)

    @property
    def parts(self) -> tuple[Kind, ...]:
        """The parts, ordered by key."""
        return tuple(member.part for member in self.members)

    def placements(self) -> tuple[Placement[Kind], ...]:
        """Return the parts in order, each with the reasons why it comes after others."""
        order = self._sort()
        placements = []
        for index in order:
            after = [self.edge_reasons[edge] for edge in self._deciding_edges(index)]
            placements.append(Placement(self.members[index].part, tuple(dict.fromkeys(after))))
        return tuple(placements)

    def _deciding_edges(self, index: int) -> list[Edge]:
        """Return the edges to a member, without the edges that follow from other edges."""
        before = [edge for edge in sorted(self.edge_reasons) if edge[1] == index]
        return [
            edge for edge in before if not any((edge[0], neighbour) in self.edge_reasons for neighbour, _ in before)
        ]

    def in_order(self) -> tuple[Kind, ...]:
        """Return the parts in order."""
        return tuple(self.members[index].part for index in self._sort())

    def _sort(self) -> list[int]:
        before: dict[int, set[int]] = {index: set() for index in range(len(self.members))}
        for first, second in self.edge_reasons:
            before[second].add(first)
        sorter = graphlib.TopologicalSorter(before)
        try:
            sorter.prepare()
        except graphlib.CycleError as error:
            raise self._cycle_error(error.args[1]) from None
        ordered: list[int] = []
        ready: list[int] = []
        while sorter.is_active():
            for index in sorter.get_ready():
                heapq.heappush(ready, index)
            ordered.append(heapq.heappop(ready))  # one at a time, so that each member comes as early as its key allows
            sorter.done(ordered[-1])
        return ordered

    def _cycle_error(self, cycle: Sequence[int]) -> RecipeConflict:
        """Return the error for members in a cycle, each of which must come before the next."""
        steps = [self.edge_reasons[edge] for edge in pairwise(cycle)]
        first, second = (self.members[index].part.title for index in cycle[:2])
        return RecipeConflict(
            f"{first} and {second} must each come before the other: {'; '.join(dict.fromkeys(steps))}",
            fix="leave out one of them, or change the declared order",
        )

    def _edges_of_stated_orders(self) -> Iterator[tuple[Edge, str]]:
        indices = {member.part.title: index for index, member in enumerate(self.members)}
        for order in sorted(self.stated_orders, key=lambda order: (order.owner.title, order.titles)):
            for first, second in combinations([title for title in order.titles if title in indices], 2):
                yield (indices[first], indices[second]), f"{order.owner.title} lists {first} before {second}"

    def _edges_of_traits(self) -> Iterator[tuple[Edge, str]]:
        for index, member in enumerate(self.members):
            speakers: tuple[Part, ...] = (member.part, *member.owners)
            for speaker in speakers:
                for name in speaker.after:
                    for neighbour in self._positions_named(name, index, speaker):
                        yield (neighbour, index), self._reason(index, speaker, "after", neighbour, name)
                for name in speaker.before:
                    for neighbour in self._positions_named(name, index, speaker):
                        yield (index, neighbour), self._reason(index, speaker, "before", neighbour, name)

    def _positions_named(self, name: str, index: int, speaker: Part) -> Iterator[int]:
        """Yield the indices of the members that a name refers to, except members with the owner `speaker`.

        The speaker is the part whose trait contains the name. A name is a label of a member, or of an owner of a
        member.
        """
        own = self.members[index]
        for neighbour, member in enumerate(self.members):
            by_owner = any(name in owner.labels and owner not in own.owners for owner in member.owners)
            is_called = name in member.part.labels or by_owner
            if is_called and neighbour != index and speaker not in member.owners:
                yield neighbour

    def _reason(self, index: int, speaker: Part, relation: str, relative: int, name: str) -> str:
        title, named = self.members[index].part.title, self.members[relative].part.title
        relation_text = f"{title} comes {relation} {named}"
        owner_reason = [] if speaker is self.members[index].part else [f"{speaker.title} comes {relation} {name}"]
        return f"{relation_text}, since {owner_reason[0]}" if owner_reason else relation_text
