"""The Python functions that C code may call, found from the function that is called and its arguments."""

import _json
import functools
import gc
import operator
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from enum import EnumMeta
from itertools import islice
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FrameType,
    FunctionType,
    GeneratorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    TracebackType,
)
from typing import Any

from thunder_core.foundation.type_flags import HEAP_TYPE, IMMUTABLE_TYPE
from thunder_core.frontend.interpreter.iterators import (
    APPLYING_ITERATORS,
    COMPARING_ITERATORS,
    PARTS_OF_ITERATORS,
    QUIET_ITERATORS,
    VIEWS,
    Parts,
    may_call_or_forward,
    unknown_function,
    unknown_items,
)
from thunder_core.frontend.interpreter.lookup import parts_of_partial, remember, shortcut
from thunder_core.frontend.interpreter.native import proxied_object, unwrap
from thunder_core.frontend.interpreter.operators import PRIMITIVE_TYPES
from thunder_core.tracing.library.changes.class_entries import dict_of, mro_of

Functions = dict[FunctionType, None]
Keywords = dict[str, Any]

# The maximum depth to which parts of arguments are examined.
_MAX_DEPTH = 5
# The maximum number of stored keys of a container that are examined before a lookup. Keys of one container are rarely
# of many classes.
_MAX_KEYS = 100
# Added to the depth if C code may instantiate or subclass the classes in its arguments.
_CONSTRUCTOR_DEPTH = 100

# Types whose instances lead to no Python function.
QUIET_TYPES = PRIMITIVE_TYPES | {
    BuiltinFunctionType, CellType, CodeType, FrameType, ModuleType, TracebackType, bytearray, memoryview, object, range,
    type(str.join), type(object.__init__), type("".__len__), type(Ellipsis), type(NotImplemented),
}  # fmt: skip


def _arguments_of(error: BaseException) -> Iterable[Any]:
    """Return the `args` of an exception. Printing an exception does not use its traceback, cause and context."""
    arguments: tuple[Any, ...] = BaseException.args.__get__(error)  # type: ignore[attr-defined]
    return arguments


def _parts_of_partial(partial: object) -> Iterable[Any]:
    function, args, keywords = parts_of_partial(partial)
    return function, *args, *keywords.values()


# By the exact type of an argument: the function that returns the objects in the argument that C code may use. For
# instances of other types, C code may also call the special methods of the type.
REFERENTS: dict[type, Parts] = {
    MethodType: lambda method: (method.__func__, method.__self__),
    functools.partial: _parts_of_partial,
    functools._lru_cache_wrapper: lambda cached: (getattr(cached, "__wrapped__", None),),
    staticmethod: lambda method: (method.__func__,),
    classmethod: lambda method: (method.__func__,),
    property: lambda prop: (prop.fget, prop.fset, prop.fdel),
    GeneratorType: unknown_items,
    **PARTS_OF_ITERATORS,
    _json.make_encoder: gc.get_referents,
    slice: lambda value: (value.start, value.stop, value.step),
    weakref.ref: lambda reference: (reference(),),  # methods of the referent hash and compare the reference
    **dict.fromkeys(weakref.ProxyTypes, lambda proxy: (proxied_object(proxy),)),
}
_ITEMS_OF_CONTAINERS: dict[type, Parts] = {
    dict: lambda mapping: (*dict.keys(mapping), *dict.values(mapping)),
    list: list.__iter__,
    tuple: tuple.__iter__,
    set: set.__iter__,
    frozenset: frozenset.__iter__,
    deque: deque.__iter__,
}
_ITEMS_OF_CONTAINERS |= {type(view): iter for view in VIEWS}
REFERENTS |= _ITEMS_OF_CONTAINERS | dict.fromkeys((OrderedDict, Counter), _ITEMS_OF_CONTAINERS[dict])
REFERENTS[defaultdict] = lambda mapping: (mapping.default_factory, *_ITEMS_OF_CONTAINERS[dict](mapping))

# C functions that call no method of their arguments.
_QUIET_FUNCTIONS: frozenset[Any] = frozenset((id, callable))
# C functions and types that call special methods of their arguments, but not of the arguments' items.
_SHALLOW_FUNCTIONS: frozenset[Any] = frozenset({len, iter, isinstance, issubclass})
_SHALLOW_TYPES = frozenset({type, list, tuple})
_ITEM_OPERATORS = frozenset({operator.getitem, operator.setitem, operator.delitem, operator.contains})
# Methods of containers that call no method of items and keys.
_QUIET_METHODS = frozenset(
    {
        "append", "appendleft", "popleft", "popitem", "copy", "clear", "reverse", "keys", "values", "items", "__len__",
        "__iter__",
    }
)  # fmt: skip
# Methods of dictionaries and sets that hash and compare their first argument.
_KEYED_METHODS = frozenset(
    {"get", "setdefault", "add", "discard", "pop", "__contains__", "__getitem__", "__setitem__", "__delitem__"}
)
# Methods of sequences whose first argument is an index or a number.
_INDEXED_METHODS = frozenset({"insert", "pop", "rotate"})
_CONTAINERS = (dict, list, set, frozenset, deque, tuple)


def _is_container(kind: type) -> bool:
    """Whether a type is a built-in container or derives from one."""
    return issubclass(kind, _CONTAINERS)


def _is_keyed(kind: type) -> bool:
    """Whether a type finds its items by hash."""
    return issubclass(kind, dict | set | frozenset)


def stored_keys(container: Any) -> Iterable[Any]:
    """Return keys of a mapping or members of a set, one of each class, which a lookup may compare with its key.

    Keys of primitive types are left out, because their comparisons run no Python code.
    """
    kind = type(container)
    base: Any = dict if issubclass(kind, dict) else set if issubclass(kind, set) else frozenset
    if {*map(type, islice(base.__iter__(container), _MAX_KEYS))} <= PRIMITIVE_TYPES:
        return ()
    keys = {type(key): key for key in list(islice(base.__iter__(container), _MAX_KEYS))}
    return [key for kind, key in keys.items() if kind not in PRIMITIVE_TYPES]


# Special methods that are not redirected when C code receives an instance. `__del__` may run at any time. The others
# instantiate or subclass a class: `_constructors` adds most of them when C code receives the class itself.
_EXCLUDED_SPECIAL_METHODS = frozenset(
    {"__del__", "__new__", "__init__", "__init_subclass__", "__class_getitem__", "__prepare__"}
)
_MEMBER_LOOKUPS = ("_missing_",)  # called by the class of an enumeration
_CONSTRUCTOR_METHODS = ("__new__", "__init__", "__init_subclass__", "__class_getitem__")


# Methods without underscores that C code calls by name, on objects used as files, mappings or generators.
_METHODS_CALLED_BY_NAME = frozenset(
    {"write", "flush", "read", "readline", "keys", "items", "update", "send", "throw", "close"}
)


class Reach:
    """Finds the Python functions that a call of C code may call, and whose calls may be redirected."""

    def __init__(self, is_redirectable: Callable[[FunctionType], bool], quiet_types: frozenset[type]) -> None:
        self._is_redirectable = is_redirectable
        self._quiet = QUIET_TYPES | quiet_types
        # The redirectable functions of a type, by the identity of the tuple of its functions.
        self._redirectable_of: dict[int, tuple[tuple[FunctionType, ...], Functions]] = {}

    def functions_of_call(self, function: Any, arguments: Sequence[Any], keywords: Keywords) -> Functions:
        """Return the Python functions that a C function may call with these arguments."""
        reached: Functions = {}
        kind = type(function)
        if kind is BuiltinFunctionType or kind is MethodWrapperType:
            owner = function.__self__
            owner_kind = type(owner)
            if owner_kind is ModuleType:
                if function is next:
                    return reached if type(arguments[0]) in QUIET_ITERATORS else self._functions_of_step(arguments[0])
                if function in _QUIET_FUNCTIONS:
                    return reached
                if function in _SHALLOW_FUNCTIONS:
                    return self._special_functions_of(arguments)
                if function in _ITEM_OPERATORS and _is_keyed(type(arguments[0])):
                    return self._functions_of_lookup(arguments[0], arguments[1])
            elif owner_kind not in self._quiet:
                container = _is_container(owner_kind)
                name = function.__name__
                if container and name in _QUIET_METHODS:
                    return reached
                if container and name in _KEYED_METHODS and arguments and _is_keyed(owner_kind):
                    return self._functions_of_lookup(owner, arguments[0])
                if container and name in _INDEXED_METHODS:
                    return self.functions_of_values(*arguments[:1])
                if name == "__next__":
                    return reached if owner_kind in QUIET_ITERATORS else self._functions_of_step(owner)
                self._add_functions_of(owner, reached, _MAX_DEPTH if container else 2)
                if not container and kind is BuiltinFunctionType:
                    self._add_methods(owner, reached)
        elif kind is type and function in _SHALLOW_TYPES:
            return self._special_functions_of(arguments)
        else:
            self._add_functions_of(function, reached, 1)
        depth = _MAX_DEPTH if kind is BuiltinFunctionType else _MAX_DEPTH + _CONSTRUCTOR_DEPTH
        for value in (*arguments, *keywords.values()) if keywords else arguments:
            if type(value) not in self._quiet:
                self._add_functions_of(value, reached, depth)
        return reached

    def functions_of_values(self, *values: Any) -> Functions:
        """Return the Python functions that C code may call if it receives these values."""
        reached: Functions = {}
        for value in values:
            if type(value) not in self._quiet:
                self._add_functions_of(value, reached, _MAX_DEPTH)
        return reached

    def _special_functions_of(self, values: Sequence[Any]) -> Functions:
        """Return the Python functions that C code calls for these values as such, without the items of containers."""
        reached: Functions = {}
        for value in map(unwrap, values):
            if type(value).__flags__ & HEAP_TYPE and type(value) not in self._quiet:
                self._add_redirectable(special_functions(type(value)), reached)
        return reached

    def _functions_of_step(self, iterator: object) -> Functions:
        """Return the functions that a step of a C iterator may call. Bridges among its parts add only a placeholder."""
        kind = type(iterator)
        if kind in APPLYING_ITERATORS:
            reached: Functions = {unknown_function: None}
            for part in gc.get_referents(iterator) if kind in COMPARING_ITERATORS else ():
                self._add_functions_of(part, reached, _MAX_DEPTH if type(part) in COMPARING_ITERATORS else 1)
            return reached
        return self.functions_of_values(iterator) if may_call_or_forward(kind) else {}

    def _functions_of_lookup(self, container: Any, key: object) -> Functions:
        """Return the functions that an item lookup may call: methods of keys, and a factory of missing items."""
        reached = self.functions_of_values(key, *stored_keys(container))
        kind = type(container)
        self._add_redirectable(special_functions(kind), reached)
        if kind is defaultdict:
            self._add_functions_of(container.default_factory, reached, 1)
        return reached

    def _add_functions_of(self, value: Any, reached: Functions, depth: int) -> None:
        """Add the functions that C code may call if it receives a value, up to a depth of nested parts.

        Constructors of a class are added only if `depth` is at least `_CONSTRUCTOR_DEPTH`.
        """
        kind = type(value)
        if kind is FunctionType:
            if value is unknown_function or self._can_be_redirected(value):
                reached[value] = None
            return
        parts = REFERENTS.get(kind)
        if parts is None:
            self._add_redirectable(special_functions(kind), reached)
            if issubclass(kind, type):
                if depth >= _CONSTRUCTOR_DEPTH:
                    self._add_redirectable(_constructors(value), reached)
                elif issubclass(kind, EnumMeta):
                    self._add_redirectable(
                        _functions(value, "lookups of members", _MEMBER_LOOKUPS.__contains__), reached
                    )
                return
            parts = next((_ITEMS_OF_CONTAINERS[base] for base in mro_of(kind) if base in _ITEMS_OF_CONTAINERS), None)
            if parts is None and issubclass(kind, BaseException):
                parts = _arguments_of
            elif parts is None and kind.__flags__ & IMMUTABLE_TYPE:
                parts = gc.get_referents
        if parts is not None and depth % _CONSTRUCTOR_DEPTH:
            for part in parts(value):
                if type(part) not in self._quiet and not is_row(part):
                    self._add_functions_of(part, reached, depth - 1)

    def _add_redirectable(self, functions: tuple[FunctionType, ...], reached: Functions) -> None:
        """Add the functions whose code can be redirected."""
        if not functions:
            return
        entry = self._redirectable_of.get(id(functions))
        if entry is None:
            chosen = dict.fromkeys(function for function in functions if self._can_be_redirected(function))
            entry = self._redirectable_of[id(functions)] = functions, chosen
        reached.update(entry[1])

    def _can_be_redirected(self, function: FunctionType) -> bool:
        """Whether calls of a function may be redirected, and the function's code can be replaced."""
        return len(function.__closure__ or ()) == len(function.__code__.co_freevars) and self._is_redirectable(function)

    def _add_methods(self, owner: object, reached: Functions) -> None:
        """Add all methods of an instance or class, because an inherited C method may call any of them by name.

        An object of a C type may call methods of the objects that it refers to.
        """
        kind = owner if isinstance(owner, type) else type(owner)
        if kind.__flags__ & IMMUTABLE_TYPE:
            for part in gc.get_referents(owner):
                if not type(part).__flags__ & IMMUTABLE_TYPE:
                    self._add_redirectable(_functions(type(part), "all functions", lambda _: True), reached)
        else:
            self._add_redirectable(_functions(kind, "all functions", lambda _: True), reached)


def special_functions(kind: type) -> tuple[FunctionType, ...]:
    """Return the Python functions that C code calls for instances of a type: special methods and property functions."""
    if not kind.__flags__ & HEAP_TYPE:
        return ()
    return _functions(kind, "special functions", _is_special)


def _constructors(kind: type) -> tuple[FunctionType, ...]:
    """Return the Python functions that C code calls to instantiate or subclass a class."""
    return _functions(kind, "functions of construction", _CONSTRUCTOR_METHODS.__contains__)


def _is_special(name: str) -> bool:
    """Whether C code may call a method with this name. `__torch_function__` is captured regardless of its caller."""
    special = name[:2] == "__" == name[-2:] and name not in _EXCLUDED_SPECIAL_METHODS
    return name in _METHODS_CALLED_BY_NAME or (special and not name.startswith("__torch_"))


def _functions(kind: type, label: str, chosen: Callable[[str], bool]) -> tuple[FunctionType, ...]:
    """Return the Python functions that a type and its bases define under the chosen names.

    The result is cached under `label` until the type changes. A label has a space: `shortcut` also has attributes.
    """
    cached: tuple[FunctionType, ...] | None = shortcut(kind, label)
    if cached is not None:
        return cached
    chosen_functions: dict[FunctionType, None] = {}
    seen: set[str] = set()
    for base in mro_of(kind):
        if not base.__flags__ & HEAP_TYPE:
            continue
        for name, unbound in dict_of(base).items():
            if name not in seen and (chosen(name) or (chosen is _is_special and isinstance(unbound, property))):
                seen.add(name)
                chosen_functions.update(dict.fromkeys(_functions_of_attribute(unbound)))
    functions = tuple(chosen_functions)
    remember(kind, label, functions)
    return functions


def _functions_of_attribute(unbound: Any) -> Iterable[FunctionType]:
    """Return the Python functions of a class attribute: a function, a method's function, or a property's functions."""
    kind = type(unbound)
    if kind is FunctionType:
        return (unbound,)
    parts = REFERENTS[kind](unbound) if kind in (staticmethod, classmethod, MethodType, functools.partial) else ()
    if isinstance(unbound, property):
        parts = (unbound.fget, unbound.fset, unbound.fdel)
    return [part for part in parts if type(part) is FunctionType]


def is_row(value: object) -> bool:
    """Whether a value is a tuple of numbers, strings and bytes.

    Such tuples are skipped: a heap or a table may have very many, and they refer to no Python function.
    """
    return type(value) is tuple and PRIMITIVE_TYPES.issuperset(map(type, value))
