"""Guards on the contents of containers and namespaces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from thunder_core.foundation.quick_objects import with_quick_init
from thunder_core.frontend.acquire.outside.guards.guard import Guard, GuardScope
from thunder_core.frontend.acquire.outside.guards.values import EXACTLY_EQUAL_CLASSES, NUMBERS, SAME_VALUES
from thunder_core.frontend.acquire.outside.namespaces import overridden_base, stored_class
from thunder_core.frontend.acquire.outside.paths import MODULE_TABLES, Path
from thunder_core.tracing.ir.constants import bind_constant
from thunder_core.tracing.ir.literal import LibraryFunction, literal

SAME_MEMBERS = LibraryFunction("thunder_core.tracing.library.objects", "same_members")
MAX_SHOWN_ITEMS = 10  # in the words of a guard


def stored_method(path: Path, method: str, otherwise: str, scope: GuardScope) -> str:
    """Return the expression of a method that reads the stored items of the container at a path.

    This is the method of the built-in class, such as `list.__len__`, if the container's class overrides the method, and
    `otherwise` if not.
    """
    base = overridden_base(path.value, method)
    return otherwise if base is None else f"{bind_constant(base, scope)}.{method}"


@dataclass(frozen=True, eq=False)
class Length(Guard):
    """Requires a container of this length."""

    length: int

    def condition(self, subject: str, scope: GuardScope) -> str:
        return f"{stored_method(self.path, '__len__', 'len', scope)}({subject}) == {self.length}"

    @property
    def words(self) -> str:
        return f"had {self.length} items"


@dataclass(frozen=True, eq=False)
class Keys(Guard):
    """Requires a mapping with these keys in this order.

    If its class `kind` is not dict, `base.keys` lists the keys that it stores. Another guard requires the class.
    """

    base: type
    keys: tuple[Any, ...]
    kind: type

    def condition(self, subject: str, scope: GuardScope) -> str:
        if self.kind is dict and not self.keys:
            return f"not {subject}"
        stored = subject if self.kind is dict else f"{bind_constant(self.base, scope)}.keys({subject})"
        if self.keys and {*map(type, self.keys)} != {str} and not is_table_of_names(self.path):
            return f"{scope.function(SAME_VALUES)}(tuple({stored}), {literal(self.keys, scope)})"
        is_equal = f"tuple({stored}) == {literal(self.keys, scope)}"
        if is_table_of_names(self.path):
            return is_equal
        return f"{is_equal} and {{*map(type, {stored})}} == {{str}}" if self.keys else is_equal

    @property
    def words(self) -> str:
        return f"had the keys {list(self.keys)!r}"


def is_table_of_names(path: Path) -> bool:
    """Whether the keys of the dict at a path are names of arguments or attributes."""
    return path.parent is None or path.key == "__dict__" or (path.step == "entry" and path.key in MODULE_TABLES)


@dataclass(frozen=True, eq=False)
class ConstantItems(Guard):
    """Requires that the items of a list, or the values of a dict, are equal constants of the same types.

    `item_paths` are the paths of all items. Other guards require the class, and the length or the keys.
    """

    item_paths: tuple[Path, ...]

    @property
    def items(self) -> tuple[Any, ...]:
        """The constants, in their order."""
        return tuple(path.value for path in self.item_paths)

    def condition(self, subject: str, scope: GuardScope) -> str:
        held = f"{subject}.values()" if type(self.path.value) is dict else subject
        classes = {*map(type, self.items)}
        if classes.issubset(EXACTLY_EQUAL_CLASSES) and len(classes) == 1:
            is_equal = f"tuple({held}) == {literal(self.items, scope)}"
            return f"{is_equal} and {{*map(type, {held})}} == {literal(classes, scope)}"
        return f"{scope.function(SAME_VALUES)}(tuple({held}), {literal(self.items, scope)})"

    @property
    def words(self) -> str:
        more = ", ..." if len(self.items) > MAX_SHOWN_ITEMS else ""
        return f"had the values {', '.join(map(repr, self.items[:MAX_SHOWN_ITEMS]))}{more}"

    @property
    def guards_number(self) -> bool:
        """Whether one of the constants is a number that may vary between calls."""
        return any(type(item) in NUMBERS for item in self.items)


@with_quick_init
@dataclass(frozen=True, eq=False)
class Absent(Guard):
    """Requires that none of these names or keys is in a namespace or a container."""

    names: tuple[Any, ...]

    def condition(self, subject: str, scope: GuardScope) -> str:
        return " and ".join(f"{literal(name, scope)} not in {subject}" for name in self.names)

    @property
    def words(self) -> str:
        return f"had none of the keys {', '.join(map(repr, self.names))}"


@dataclass(frozen=True, eq=False)
class NotStored(Absent):
    """Requires that a dict stores none of these keys, where the class of the dict overrides `__contains__`."""

    def condition(self, subject: str, scope: GuardScope) -> str:
        return " and ".join(f"not dict.__contains__({subject}, {literal(name, scope)})" for name in self.names)


@dataclass(frozen=True, eq=False)
class Members(Guard):
    """Requires a set with equal members of the same types, and in the same order if `is_ordered` is set.

    `is_ordered` may be set only if all members are numbers, because hashes of strings, and so the order of a set of
    strings, differ between processes.
    """

    members: tuple[Any, ...]
    is_ordered: bool

    def condition(self, subject: str, scope: GuardScope) -> str:
        if not self.members:
            equals = stored_method(self.path, "__eq__", "", scope)
            return f"{equals}({subject}, set())" if equals else f"{subject} == set()"
        base = stored_class(self.path.value)
        iterated = subject if type(self.path.value) is base else f"{bind_constant(base, scope)}.__iter__({subject})"
        if self.is_ordered:
            return f"{scope.function(SAME_VALUES)}(tuple({iterated}), {literal(self.members, scope)})"
        return f"{scope.function(SAME_MEMBERS)}({iterated}, {literal(set(self.members), scope)})"

    @property
    def words(self) -> str:
        return f"was {{{', '.join(sorted(map(repr, self.members)))}}}" if self.members else "was set()"


@dataclass(frozen=True, eq=False)
class MembersThemselves(Guard):
    """Requires a set with the same members, compared by identity, in the same order if `is_ordered` is set.

    The order of members with equal hashes depends on the order in which they were added.
    """

    members: tuple[Any, ...]
    is_ordered: bool

    def condition(self, subject: str, scope: GuardScope) -> str:
        iterator = stored_method(self.path, "__iter__", "", scope)
        members = f"{iterator}({subject})" if iterator else subject
        identities = "[*map(id, {})]" if self.is_ordered else "{{*map(id, {})}}"
        constant = scope.constant(self.members, "members")
        return f"{identities.format(members)} == {identities.format(constant)}"

    @property
    def words(self) -> str:
        return f"had {len(self.members)} specific members"


@dataclass(frozen=True, eq=False)
class HasMember(Guard):
    """Requires a set that contains a member, or does not contain it."""

    member: Any
    is_member: bool

    @property
    def key(self) -> tuple[Any, ...]:
        return (HasMember, self.path, self.member)

    def condition(self, subject: str, scope: GuardScope) -> str:
        return f"{bind_constant(self.member, scope)} {'in' if self.is_member else 'not in'} {subject}"

    @property
    def words(self) -> str:
        return f"{'contained' if self.is_member else 'did not contain'} {self.member!r:.60}"
