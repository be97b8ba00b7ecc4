"""Disjoint sets: a union-find structure (Galler and Fischer, 1964) whose sets list their members."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Member = TypeVar("Member", bound=Hashable)


@dataclass
class DisjointSets(Generic[Member]):
    """Disjoint sets that can be united; a member that was never united is a set of its own."""

    _parents: dict[Member, Member] = field(default_factory=dict)
    _members: dict[Member, set[Member]] = field(default_factory=dict)

    def representative(self, member: Member) -> Member:
        """Return the representative member of the set that contains a member."""
        while (parent := self._parents.get(member, member)) != member:
            self._parents[member] = self._parents.get(parent, parent)
            member = parent
        return member

    def members(self, member: Member) -> frozenset[Member]:
        """Return all members of the set that contains a member."""
        return frozenset(self._members.get(self.representative(member), {member}))

    def unite(self, left: Member, right: Member) -> None:
        """Unite the sets of two members."""
        small, large = self.representative(left), self.representative(right)
        if small != large:
            self._parents[small] = large
            self._members.setdefault(large, {large}).update(self._members.pop(small, {small}))
