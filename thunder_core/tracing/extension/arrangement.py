"""The topological order of the parts of a recipe: by their traits, and by name where these leave a choice."""

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
Edge = tuple[int, int]  # the places of a part and of one that comes behind it


@dataclass(frozen=True)
class Member(Generic[Kind]):
    """A part that has a place in an order, with the recipes and plug-ins that bring it.

    Where no trait decides, members stand in the order of their keys, which have to differ.
    """

    part: Kind
    key: tuple[object, ...]
    owners: tuple[Part, ...] = ()


@dataclass(frozen=True)
class StatedOrder:
    """The order in which a recipe or a plug-in lists some members, by their titles, which decides for these."""

    owner: Part
    titles: tuple[str, ...]


@dataclass(frozen=True)
class Placement(Generic[Kind]):
    """A part in its place, and the reasons for that: none where its name alone decided."""

    part: Kind
    reasons: tuple[str, ...]


@dataclass
class Arrangement(Generic[Kind]):
    """The members of a recipe in one order, whatever order they were given in.

    Raises `RecipeConflict` where members must each come before the other, with what says so.
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

    def keeping(self, parts: Sequence[Kind]) -> Arrangement[Kind]:
        """The order of the members that are among these parts."""
        kept = {id(part) for part in parts}
        return Arrangement([member for member in self.members if id(member.part) in kept], self.stated_orders)

    @property
    def parts(self) -> tuple[Kind, ...]:
        """The parts, by their keys."""
        return tuple(member.part for member in self.members)

    def placements(self) -> tuple[Placement[Kind], ...]:
        """The parts in their order, each with the reasons why it stands behind others."""
        order = self._sorted()
        found = []
        for place in order:
            behind = [self.edge_reasons[edge] for edge in self._deciding(place)]
            found.append(Placement(self.members[place].part, tuple(dict.fromkeys(behind))))
        return tuple(found)

    def _deciding(self, place: int) -> list[Edge]:
        """The edges to a place, without those that lead there by another one as well."""
        before = [edge for edge in sorted(self.edge_reasons) if edge[1] == place]
        return [edge for edge in before if not any((edge[0], other) in self.edge_reasons for other, _ in before)]

    def ordered(self) -> tuple[Kind, ...]:
        """The parts in their order."""
        return tuple(self.members[place].part for place in self._sorted())

    def _sorted(self) -> list[int]:
        before: dict[int, set[int]] = {place: set() for place in range(len(self.members))}
        for first, second in self.edge_reasons:
            before[second].add(first)
        sorter = graphlib.TopologicalSorter(before)
        try:
            sorter.prepare()
        except graphlib.CycleError as error:
            raise self._cycle(error.args[1]) from None
        ordered: list[int] = []
        ready: list[int] = []
        while sorter.is_active():
            for place in sorter.get_ready():
                heapq.heappush(ready, place)
            ordered.append(heapq.heappop(ready))  # one at a time, so that each stands as early as its key lets it
            sorter.done(ordered[-1])
        return ordered

    def _cycle(self, cycle: Sequence[int]) -> RecipeConflict:
        """The error for members each of which comes before the next, and the last is the first."""
        steps = [self.edge_reasons[edge] for edge in pairwise(cycle)]
        first, second = (self.members[place].part.title for place in cycle[:2])
        return RecipeConflict(
            f"{first} and {second} must each come before the other: {'; '.join(dict.fromkeys(steps))}",
            fix="leave out one of them, or change the declared order",
        )

    def _edges_of_stated_orders(self) -> Iterator[tuple[Edge, str]]:
        places = {member.part.title: place for place, member in enumerate(self.members)}
        for stated in sorted(self.stated_orders, key=lambda stated: (stated.owner.title, stated.titles)):
            for first, second in combinations([title for title in stated.titles if title in places], 2):
                yield (places[first], places[second]), f"{stated.owner.title} lists {first} before {second}"

    def _edges_of_traits(self) -> Iterator[tuple[Edge, str]]:
        for place, member in enumerate(self.members):
            speakers: tuple[Part, ...] = (member.part, *member.owners)
            for speaker in speakers:
                for name in speaker.after:
                    for other in self._places_named(name, place, speaker):
                        yield (other, place), self._reason(place, speaker, "after", other, name)
                for name in speaker.before:
                    for other in self._places_named(name, place, speaker):
                        yield (place, other), self._reason(place, speaker, "before", other, name)

    def _places_named(self, name: str, place: int, speaker: Part) -> Iterator[int]:
        """Return the places of the members that a name stands for, but for those that the speaker brings as well.

        A name is one of a member's own labels, or of those of a recipe or a plug-in that brings it.
        """
        own = self.members[place]
        for other, member in enumerate(self.members):
            by_owner = any(name in owner.labels and owner not in own.owners for owner in member.owners)
            is_called = name in member.part.labels or by_owner
            if is_called and other != place and speaker not in member.owners:
                yield other

    def _reason(self, place: int, speaker: Part, relation: str, other: int, name: str) -> str:
        title, named = self.members[place].part.title, self.members[other].part.title
        told = f"{title} comes {relation} {named}"
        by = [] if speaker is self.members[place].part else [f"{speaker.title} comes {relation} {name}"]
        return f"{told}, since {by[0]}" if by else told
