"""Guards: what the program read from outside, as conditions that must hold for its traces to be used again."""

from __future__ import annotations

import enum
import math
import operator
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

from thunder_core.frontend.acquire.outside.paths import Path
from thunder_core.tracing.ir.literal import Scope, literal
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.library.capturing_hooks import HOOKS

Condition = Callable[[str, Any, Scope], str]


@dataclass(frozen=True, eq=False)
class Guard:
    """A condition of one kind on what lies at a path; `expected` is what tracing found there."""

    kind: str
    path: Path
    expected: Any

    def condition(self, subject: str, scope: Scope) -> str:
        """The condition as a Python expression over the subject's expression."""
        return CONDITIONS[self.kind](subject, self.expected, scope)

    def __str__(self) -> str:
        return f"{self.path}: {DESCRIPTIONS[self.kind](self.expected)}"


def bound(value: Any, scope: Scope) -> str:
    """A function, class or module as a constant: its dotted name would find whatever replaced it."""
    if not isinstance(value, BY_IDENTITY) or (isinstance(value, type) and value.__module__ == "builtins"):
        return literal(value, scope)
    return scope.constant(value, getattr(value, "__name__", "constant"))


def _is(subject: str, expected: Any, scope: Scope) -> str:
    if isinstance(expected, type):  # builtin classes too: this may be the guard that notices their replacement
        return f"{subject} is {scope.constant(expected, expected.__name__)}"
    return f"{subject} is {bound(expected, scope)}"


def _values(subject: str, expected: tuple[Any, ...], scope: Scope) -> str:
    same = f"{subject} == {literal(expected, scope)}"
    if not any(isinstance(value, int | float) for value in expected):
        return same
    return f"{same} and [*map(type, {subject})] == {literal([type(value) for value in expected], scope)}"


def _number(subject: str, expected: Any, scope: Scope) -> str:
    return f"{_type(subject, type(expected), scope)} and hash({subject}) == {hash(expected)}"


def _type(subject: str, expected: type, scope: Scope) -> str:
    return f"type({subject}) is {bound(expected, scope)}"


def _equal(subject: str, expected: Any, scope: Scope) -> str:
    """Equal and of the same type, which keeps 1, 1.0 and True apart; zeros by sign and NaN by itself."""
    if isinstance(expected, float) and (expected == 0.0 or math.isnan(expected)):
        return f"type({subject}) is float and str({subject}) == {str(expected)!r}"
    same = f"{subject} == {literal(expected, scope)}"
    return same if isinstance(expected, str) else f"{same} and {_type(subject, type(expected), scope)}"


def _length(subject: str, expected: int, scope: Scope) -> str:
    return f"len({subject}) == {expected}"


def _keys(subject: str, expected: tuple[type, tuple[Any, ...], type], scope: Scope) -> str:
    base, keys, kind = expected
    if kind is dict:
        return f"tuple({subject}) == {literal(keys, scope)}" if keys else f"not {subject}"
    return f"tuple({bound(base, scope)}.keys({subject})) == {literal(keys, scope)}"


def _absent(subject: str, expected: tuple[Any, ...], scope: Scope) -> str:
    return " and ".join(f"{literal(key, scope)} not in {subject}" for key in expected)


def _members(subject: str, expected: frozenset[Any], scope: Scope) -> str:
    return f"{subject} == {literal(set(expected), scope)}"


def _not_stored(subject: str, expected: tuple[Any, ...], scope: Scope) -> str:
    return " and ".join(f"not dict.__contains__({subject}, {literal(key, scope)})" for key in expected)


def _members_themselves(subject: str, expected: tuple[Any, ...], scope: Scope) -> str:
    return f"{{*map(id, {subject})}} == {{*map(id, {scope.constant(expected, 'members')})}}"


def _member(subject: str, expected: tuple[Any, bool], scope: Scope) -> str:
    key, held = expected
    return f"{bound(key, scope)} {'in' if held else 'not in'} {subject}"


def _lacks(subject: str, expected: str, scope: Scope) -> str:
    return f"not hasattr({subject}, {expected!r})"


def _truth(subject: str, expected: bool, scope: Scope) -> str:
    return f"{'' if expected else 'not '}{subject}"


def _without_hooks(subject: str, expected: None, scope: Scope) -> str:
    return "not (" + " or ".join(f"{subject}[{name!r}]" for name in HOOKS) + ")"


def _without_other_hooks(subject: str, expected: None, scope: Scope) -> str:
    scope.imports.add(NO_OTHER_HOOKS)
    return f"no_others({subject})"


SPECIAL_METHODS = "thunder_core.frontend.interpreter.special:special_methods"
STATE_OF = "thunder_core.tracing.library.states:state_of"
NO_OTHER_HOOKS = "thunder_core.tracing.library.capturing_hooks:no_others"
OF_NAMESPACE = frozenset(
    {"no hooks", "no hooks but the library's"}
)  # kinds whose condition is on the `__dict__` of what lies at the path
OF_TWO_PATHS = frozenset({"same as", "apart", "lacks key"})  # kinds that expect something of what lies at another path


DEVICES: dict[torch.device, torch.device] = {}  # one object for each, so that it has one name in a prologue


def _tensor(subject: str, expected: tuple[type, TensorProxy, torch.layout], scope: Scope) -> str:
    kind, proxy, layout = expected
    dense = layout is torch.strided
    parts = [
        _type(subject, kind, scope),
        f"{subject}.dtype is {literal(proxy.dtype, scope)}",
        f"{subject}.shape == {literal(proxy.shape, scope)}",
        f"{subject}.stride() == {literal(proxy.stride, scope)}" if dense else f"{subject}.layout is {layout}",
        f"{subject}.device == {scope.constant(DEVICES.setdefault(proxy.device, proxy.device), 'device')}",
        f"{subject}.requires_grad is {proxy.requires_grad}",
        *([f"{subject}.is_conj() is {proxy.is_conj}"] if proxy.dtype.is_complex else []),
        f"{subject}.is_neg() is {proxy.is_neg}",
    ]
    return " and ".join(parts)


def _fact(subject: str, expected: tuple[str, object], scope: Scope) -> str:
    query, answer = expected
    return f"{subject}.{query} == {literal(answer, scope)}"


def _state(subject: str, expected: Any, scope: Scope) -> str:
    scope.imports.add(STATE_OF)
    return f"state_of({subject}) == {literal(expected, scope)}"


def _misses(subject: str, expected: int, scope: Scope) -> str:
    return f"{subject}.cache_info()[1] == {expected}"


def _special_methods(subject: str, expected: tuple[str, ...], scope: Scope) -> str:
    scope.imports.add(SPECIAL_METHODS)
    return f"special_methods({subject}) == {literal(expected, scope)}"


CONDITIONS: dict[str, Condition] = {
    "special methods": _special_methods,
    "misses": _misses,
    "state": _state,
    "is": _is,
    "identity": lambda subject, expected, scope: f"{subject} is {scope.constant(expected, 'known')}",
    "type": _type,
    "number": _number,
    "equal": _equal,
    "values": _values,
    "length": _length,
    "keys": _keys,
    "absent": _absent,
    "not stored": _not_stored,
    "members": _members,
    "members themselves": _members_themselves,
    "member": _member,
    "lacks": _lacks,
    "truth": _truth,
    "no hooks": _without_hooks,
    "no hooks but the library's": _without_other_hooks,
    "tensor": _tensor,
    "sparse tensor": _tensor,
    "fact": _fact,
    "same as": lambda subject, expected, scope: f"{subject} is {expected}",
    "apart": lambda subject, expected, scope: f"{subject} is not {expected}",
    "lacks key": lambda subject, expected, scope: f"{expected} not in {subject}",
}

DESCRIPTIONS: dict[str, Callable[[Any], str]] = {
    "special methods": lambda expected: f"had the special methods {', '.join(expected) or 'of its bases alone'}",
    "misses": lambda expected: f"had computed {expected} values",
    "state": lambda expected: f"had the state {expected!r:.60}",
    "is": lambda expected: f"was {named(expected)}",
    "identity": lambda expected: f"was one certain {type(expected).__name__}",
    "type": lambda expected: f"was a {expected.__name__}",
    "number": lambda expected: f"was {expected}",
    "equal": lambda expected: f"was {expected!r}",
    "values": lambda expected: f"was {expected!r}",
    "length": lambda expected: f"had {expected} items",
    "keys": lambda expected: f"had the keys {list(expected[1])!r}",
    "absent": lambda expected: f"had none of the keys {', '.join(map(repr, expected))}",
    "not stored": lambda expected: f"had none of the keys {', '.join(map(repr, expected))}",
    "members": lambda expected: f"was {{{', '.join(sorted(map(repr, expected)))}}}" if expected else "was set()",
    "members themselves": lambda expected: f"had certain {len(expected)} members",
    "member": lambda expected: f"{'held' if expected[1] else 'did not hold'} {expected[0]!r:.60}",
    "lacks": lambda expected: f"had no attribute {expected!r}",
    "truth": lambda expected: f"was {'true' if expected else 'false'}",
    "no hooks": lambda expected: "had no hooks",
    "no hooks but the library's": lambda expected: "had only hooks that collect outputs",
    "tensor": lambda expected: f"was {expected[1].described}",
    "sparse tensor": lambda expected: f"was {expected[1].described} in layout {expected[2]}",
    "fact": lambda expected: f"{expected[0]} was {expected[1]}",
    "same as": lambda expected: f"was the same object as {expected}",
    "apart": lambda expected: f"was another object than {expected}",
    "lacks key": lambda expected: f"had no item for {expected}",
}


def named(value: object) -> str:
    """An object by its name; by its type where its text would have an address, another one in each process."""
    if isinstance(value, SINGLETONS):
        return str(value)
    name = getattr(value, "__name__", None)
    return name if isinstance(name, str) else f"one certain {type(value).__name__}"


SINGLETONS = (type(None), bool, torch.dtype, torch.layout, torch.memory_format, type(...), type(NotImplemented))
VALUES = (int, float, str, bytes, complex, torch.device, torch.Size, slice, range)
CONSTANT_TYPES = frozenset({*SINGLETONS, *VALUES})
# Values of parts, which are constants where all parts are: those of a size are numbers, those of a slice anything.
PARTS: dict[type, Callable[[Any], Iterable[Any]]] = {
    torch.Size: tuple,
    slice: lambda value: (value.start, value.stop, value.step),
}
BY_IDENTITY = (
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.ModuleType,
    types.MethodWrapperType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    operator.itemgetter,
    operator.attrgetter,
    operator.methodcaller,
    property,
    classmethod,
    OpOverload,
    OpOverloadPacket,
)


def is_constant(value: Any) -> bool:
    """Whether a value is immutable and known by its equality or identity alone."""
    kind = type(value)  # not isinstance, which asks the value's own `__class__`, and a config runs Python code for it
    if kind in PARTS:
        return all(map(is_constant, PARTS[kind](value)))
    return kind in CONSTANT_TYPES or issubclass(kind, enum.Enum)


def is_plain(value: Any) -> bool:
    """Whether a value is a constant, or consists of constants and nothing else."""
    return is_constant(value) or (type(value) in (tuple, frozenset) and all(map(is_plain, value)))


def constant_guard(path: Path, value: Any) -> Guard:
    """The cheapest sound guard on a constant."""
    by_identity = type(value) in SINGLETONS or isinstance(value, enum.Enum)
    return Guard("is" if by_identity else "equal", path, value)
