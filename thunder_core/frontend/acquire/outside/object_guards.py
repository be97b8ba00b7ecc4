"""Guards on the contents of containers, and on the attributes, hooks and states of objects."""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import Any

import torch

from thunder_core.foundation.quick_objects import with_quick_init
from thunder_core.frontend.acquire.outside.guards import SAME_VALUES, Guard, GuardScope
from thunder_core.frontend.acquire.outside.namespaces import overridden_base, stored_class
from thunder_core.frontend.acquire.outside.paths import MODULE_TABLES, Path, namespace
from thunder_core.frontend.interpreter.lookup import python_method, type_lookup
from thunder_core.tracing.ir.constants import bind_constant, is_plain
from thunder_core.tracing.ir.literal import LibraryFunction, literal
from thunder_core.tracing.library.capturing_hooks import HOOKS
from thunder_core.tracing.library.overlap import shared_storages

SPECIAL_METHODS = LibraryFunction("thunder_core.frontend.interpreter.special", "special_methods")
HAS_FIRST_CODE = LibraryFunction("thunder_core.tracing.library.changes.function_codes", "has_first_code")
DEFINES = LibraryFunction("thunder_core.tracing.library.changes.class_names", "defines")
OVERRIDES = LibraryFunction("thunder_core.tracing.library.changes.class_names", "overrides")
IS_SUBCLASS = LibraryFunction("thunder_core.tracing.library.changes.abstract_classes", "regards")
LACKS = LibraryFunction("thunder_core.tracing.library.objects", "lacks")
CAN_DELETE = LibraryFunction("thunder_core.frontend.acquire.outside.snapshots", "can_delete")
STATE_OF = LibraryFunction("thunder_core.tracing.library.states", "state_of")
ACCUMULATE_WITHOUT_HOOKS = LibraryFunction(
    "thunder_core.tracing.library.changes.node_hooks", "accumulate_without_hooks"
)
KEEPS_METHODS = LibraryFunction("thunder_core.tracing.library.changes.module_calls", "keeps_methods")
SAME_MEMBERS = LibraryFunction("thunder_core.tracing.library.objects", "same_members")
SHARED_STORAGES = LibraryFunction("thunder_core.tracing.library.overlap", "shared_storages")
NO_OTHER_HOOKS = LibraryFunction("thunder_core.tracing.library.capturing_hooks", "no_others")


def stored_method(path: Path, method: str, otherwise: str, scope: GuardScope) -> str:
    """Return the expression of the method that reads the stored items of the container at a path.

    Return `dict.keys`, for example, if the container's own class overrides the method, and `otherwise` if not.
    """
    base = overridden_base(path.value, method)
    return otherwise if base is None else f"{bind_constant(base, scope)}.{method}"


def has_own_fallback(kind: type) -> bool:
    """Whether a class has a `__getattr__` in Python, which guards must not call, because it may have effects."""
    fallback = python_method(kind, "__getattr__")
    is_users = fallback is not None and fallback is not torch.nn.Module.__getattr__
    return is_users and type_lookup(kind, "__getattribute__") is object.__getattribute__


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
    """Requires a mapping of class `kind` with these keys, as listed by its built-in class `base`."""

    base: type
    keys: tuple[Any, ...]
    kind: type

    def condition(self, subject: str, scope: GuardScope) -> str:
        if self.kind is dict and not self.keys:
            return f"not {subject}"
        stored = subject if self.kind is dict else f"{bind_constant(self.base, scope)}.keys({subject})"
        if self.keys and all(map(is_plain, self.keys)) and {*map(type, self.keys)} != {str}:
            return f"{scope.function(SAME_VALUES)}(tuple({stored}), {literal(self.keys, scope)})"
        is_equal = f"tuple({stored}) == {literal(self.keys, scope)}"
        if is_table_of_names(self.path):
            return is_equal
        kinds = ", ".join(sorted({bind_constant(type(key), scope) for key in self.keys}))
        return f"{is_equal} and {{*map(type, {stored})}} == {{{kinds}}}" if kinds else is_equal

    @property
    def words(self) -> str:
        return f"had the keys {list(self.keys)!r}"


def is_table_of_names(path: Path) -> bool:
    """Whether the keys of the dict at a path are names of arguments or attributes."""
    return path.parent is None or path.key == "__dict__" or (path.step == "entry" and path.key in MODULE_TABLES)


@with_quick_init
@dataclass(frozen=True, eq=False)
class Absent(Guard):
    """Requires a namespace without these names."""

    names: tuple[Any, ...]

    def condition(self, subject: str, scope: GuardScope) -> str:
        return " and ".join(f"{literal(name, scope)} not in {subject}" for name in self.names)

    @property
    def words(self) -> str:
        return f"had none of the keys {', '.join(map(repr, self.names))}"


@dataclass(frozen=True, eq=False)
class NotStored(Absent):
    """Requires a dict that does not store these names, for a class that overrides `__contains__`."""

    def condition(self, subject: str, scope: GuardScope) -> str:
        return " and ".join(f"not dict.__contains__({subject}, {literal(name, scope)})" for name in self.names)


@dataclass(frozen=True, eq=False)
class Members(Guard):
    """Requires a set with equal members of the same types, and in the same order if `is_ordered` is set.

    Only numbers can be required in order: the hashes of strings differ from process to process.
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
    """Requires a set with the same members, compared by identity."""

    members: tuple[Any, ...]

    def condition(self, subject: str, scope: GuardScope) -> str:
        iterator = stored_method(self.path, "__iter__", "", scope)
        members = f"{iterator}({subject})" if iterator else subject
        return f"{{*map(id, {members})}} == {{*map(id, {scope.constant(self.members, 'members')})}}"

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


@dataclass(frozen=True, eq=False)
class Lacks(Guard):
    """Requires an object without an attribute of this name."""

    name: str

    @property
    def key(self) -> tuple[Any, ...]:
        return (Lacks, self.path, self.name)

    def condition(self, subject: str, scope: GuardScope) -> str:
        if has_own_fallback(type(self.path.value)):
            return f"{scope.function(LACKS)}({subject}, {self.name!r})"
        return f"not hasattr({subject}, {self.name!r})"

    @property
    def words(self) -> str:
        return f"had no attribute {self.name!r}"


@dataclass(frozen=True, eq=False)
class CanDelete(Guard):
    """Requires that an object itself has, or lacks, an attribute that the program deletes."""

    name: str
    exists: bool

    @property
    def key(self) -> tuple[Any, ...]:
        return (CanDelete, self.path, self.name)

    def condition(self, subject: str, scope: GuardScope) -> str:
        return f"{'' if self.exists else 'not '}{scope.function(CAN_DELETE)}({subject}, {self.name!r})"

    @property
    def words(self) -> str:
        return f"{'had' if self.exists else 'lacked'} {self.name!r}, which the program deletes"


@dataclass(frozen=True, eq=False)
class SpecialMethods(Guard):
    """Requires a class that defines exactly these special methods itself."""

    names: tuple[str, ...]

    def condition(self, subject: str, scope: GuardScope) -> str:
        return f"{scope.function(SPECIAL_METHODS)}({subject}) == {literal(self.names, scope)}"

    @property
    def words(self) -> str:
        return f"had the special methods {', '.join(self.names) or 'of its bases only'}"


@dataclass(frozen=True, eq=False)
class RegardsNone(Guard):
    """Requires an abstract class for which none of these classes is a subclass."""

    kinds: tuple[type, ...]

    def condition(self, subject: str, scope: GuardScope) -> str:
        is_subclass = scope.function(IS_SUBCLASS)
        return " and ".join(f"not {is_subclass}({subject}, {bind_constant(kind, scope)})" for kind in self.kinds)

    @property
    def words(self) -> str:
        return f"had no subclass {' or '.join(kind.__qualname__ for kind in self.kinds)}"


@dataclass(frozen=True, eq=False)
class OfClassNames(Guard):
    """Requires a property of the entries of a class under these names."""

    names: tuple[str, ...]

    @property
    def joined(self) -> str:
        """The names, separated by spaces."""
        return " ".join(sorted(self.names))


@dataclass(frozen=True, eq=False)
class DefinesNone(OfClassNames):
    """Requires a class that defines none of these names, which `__getattr__` has looked up."""

    def condition(self, subject: str, scope: GuardScope) -> str:
        return f"not {scope.function(DEFINES)}({subject}, {self.joined!r})"

    @property
    def words(self) -> str:
        return f"did not define {', '.join(self.names)}"


@dataclass(frozen=True, eq=False)
class OverridesNone(OfClassNames):
    """Requires a class without properties or other data descriptors under names that its instances store."""

    def condition(self, subject: str, scope: GuardScope) -> str:
        return f"not {scope.function(OVERRIDES)}({subject}, {self.joined!r})"

    @property
    def words(self) -> str:
        return f"had no property {', '.join(self.names)}"


@dataclass(frozen=True, eq=False)
class KeepsCall(OfClassNames):
    """Requires a class of modules with PyTorch's own methods of these names, which call `forward`."""

    def condition(self, subject: str, scope: GuardScope) -> str:
        return f"{scope.function(KEEPS_METHODS)}({subject}, {self.joined!r})"

    @property
    def words(self) -> str:
        return f"had PyTorch's own {', '.join(self.names)}"


@dataclass(frozen=True, eq=False)
class HasCode(Guard):
    """Requires a function with this code. `is_first`: it is the first code that Thunder has seen in the function."""

    code: types.CodeType
    is_first: bool

    def condition(self, subject: str, scope: GuardScope) -> str:
        if self.is_first:
            return f"{scope.function(HAS_FIRST_CODE)}({subject})"
        return f"{subject}.__code__ is {scope.constant(self.code, f'{self.code.co_name}_code')}"

    @property
    def words(self) -> str:
        return f"had the code of line {self.code.co_firstlineno}"


@dataclass(frozen=True, eq=False)
class Unbound(Guard):
    """Requires a closure variable without a value."""

    def condition(self, subject: str, scope: GuardScope) -> str:
        return f"{subject} == type({subject})()"  # an empty cell

    @property
    def words(self) -> str:
        return "had no value"


@dataclass(frozen=True, eq=False)
class Misses(Guard):
    """Requires a function under `functools.lru_cache` whose cache has this number of misses."""

    count: int

    def condition(self, subject: str, scope: GuardScope) -> str:
        return f"{subject}.cache_info()[1] == {self.count}"

    @property
    def words(self) -> str:
        return f"had computed {self.count} values"


@dataclass(frozen=True, eq=False)
class HasState(Guard):
    """Requires an object of C in this state."""

    state: Any

    def condition(self, subject: str, scope: GuardScope) -> str:
        return f"{scope.function(STATE_OF)}({subject}) == {literal(self.state, scope)}"

    @property
    def words(self) -> str:
        return f"had the state {self.state!r:.60}"


@dataclass(frozen=True, eq=False)
class HasFact(Guard):
    """Requires the answer to a query, such as `storage_offset()`, that is not part of a tensor's metadata."""

    query: str
    answer: object

    @property
    def key(self) -> tuple[Any, ...]:
        return (HasFact, self.path, self.query)

    def condition(self, subject: str, scope: GuardScope) -> str:
        return f"{subject}.{self.query} == {literal(self.answer, scope)}"

    @property
    def words(self) -> str:
        return f"{self.query} was {self.answer}"


@dataclass(frozen=True, eq=False)
class OfTensors(Guard):
    """Requires a property of several tensors together. A program has one guard of each class, for all tensors."""

    rest: tuple[Path, ...]

    @property
    def key(self) -> tuple[Any, ...]:
        return (type(self),)

    @property
    def other_paths(self) -> tuple[Path, ...]:
        return self.rest

    def _tensors(self, subject: str, scope: GuardScope) -> str:
        return ", ".join([subject, *(scope.variables[path] for path in self.rest)])


@dataclass(frozen=True, eq=False)
class NoAccumulationHooks(OfTensors):
    """Requires leaves whose gradient accumulation nodes have no hooks."""

    def condition(self, subject: str, scope: GuardScope) -> str:
        return f"{scope.function(ACCUMULATE_WITHOUT_HOOKS)}({self._tensors(subject, scope)})"

    @property
    def words(self) -> str:
        return "accumulated a gradient without hooks of its node"


@dataclass(frozen=True, eq=False)
class SharesStorage(OfTensors):
    """Requires that a storage is shared by the same tensors as while tracing."""

    def condition(self, subject: str, scope: GuardScope) -> str:
        expected = shared_storages(*(path.value for path in (self.path, *self.rest)))
        return f"{scope.function(SHARED_STORAGES)}({self._tensors(subject, scope)}) == {literal(expected, scope)}"

    @property
    def words(self) -> str:
        return "shared its storage with the same tensors"


@dataclass(frozen=True, eq=False)
class OfNamespace(Guard):
    """Requires a property of the `__dict__` of the object at the path."""

    @property
    def subject(self) -> Path:
        return namespace(self.path)


@dataclass(frozen=True, eq=False)
class NoHooks(OfNamespace):
    """Requires a module without hooks."""

    def condition(self, subject: str, scope: GuardScope) -> str:
        return "not (" + " or ".join(f"{subject}[{name!r}]" for name in HOOKS) + ")"

    @property
    def words(self) -> str:
        return "had no hooks"


@dataclass(frozen=True, eq=False)
class NoOtherHooks(OfNamespace):
    """Requires a module without hooks, except the hooks with which transformers collects outputs."""

    def condition(self, subject: str, scope: GuardScope) -> str:
        return f"{scope.function(NO_OTHER_HOOKS)}({subject})"

    @property
    def words(self) -> str:
        return "had only hooks that collect outputs"
