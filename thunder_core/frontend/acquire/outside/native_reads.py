"""Reads of C functions, besides the items of containers: they are guarded if known, and otherwise a sharp edge."""

from __future__ import annotations

import _pickle
import contextvars
import decimal
import operator
import types
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from thunder_core.frontend.acquire.outside.attributes import runs_python
from thunder_core.frontend.acquire.outside.containers import UNBOUND
from thunder_core.frontend.acquire.outside.native_functions import is_function_of_pybind11
from thunder_core.frontend.acquire.outside.native_kinds import (
    LOCK_METHODS,
    NativeState,
    is_getter,
    name_of,
    native_state_of,
)
from thunder_core.frontend.acquire.outside.whole_reads import WholeReads
from thunder_core.frontend.interpreter.lookup import type_lookup
from thunder_core.tracing.ir.constants import is_constant
from thunder_core.tracing.library.states import decimal_settings, numpy_settings

# C methods that return the whole contents of an object, and functions that read on in these contents.
WHOLE_READERS = frozenset({"__reduce__", "__reduce_ex__", "__getstate__", "__copy__", "__deepcopy__", "__sizeof__"})
DECIMAL_SETTINGS = "decimal_settings()"
NUMPY_SETTINGS = "numpy_settings()"
CONTEXTUAL_FUNCTIONS = (decimal.Decimal, decimal.getcontext, decimal.localcontext)
DEEP_FUNCTIONS = (_pickle.dumps, _pickle.dump)
PICKLE_OUTSIDE = "pickle or save the tensor outside the compiled program"
READ_MEMORY = "read the memory outside the compiled program and pass the values, or make a tensor of it"
READS_NO_MEMORY = frozenset({"frombuffer", "type", "isinstance", "is_", "is_not", "id", "bool", "truth", "not_"})
UNKNOWN_READS = (NativeState.OPAQUE, NativeState.GETTERS, NativeState.MEMORY)
LISTING = "__dir__"
SPECIAL_NAMES = WHOLE_READERS | {LISTING}
# Functions that read their arguments as operators do.
OPERATOR_LIKE_FUNCTIONS = (
    *(len, iter, next, list, tuple, set, dict, sum, min, max, any, all, sorted, repr, str, bytes, hash),
    *(enumerate, zip),
)
OPERATOR_LIKE, DEEP, CONTEXTUAL = (
    frozenset(map(id, functions)) for functions in (OPERATOR_LIKE_FUNCTIONS, DEEP_FUNCTIONS, CONTEXTUAL_FUNCTIONS)
)
# Operators that read nothing from an object whose class inherits them from `object`.
IDENTITY = {operator.eq: "__eq__", operator.ne: "__ne__", operator.is_: "__eq__", operator.is_not: "__ne__"}


class NativeReads:
    """Guards the reads of C functions and operators, and calls `note_edge` if the reads are unknown."""

    def __init__(
        self,
        outside: WholeReads,
        is_users_class: Callable[[type], bool],
        note_edge: Callable[..., None],
        leave_to_eager: Callable[[str, str], NoReturn],
        answers: dict[str, object],
    ) -> None:
        self._outside = outside
        self._is_users_class = is_users_class
        self._note_edge = note_edge
        self._leave_to_eager = leave_to_eager
        self._answers = answers
        self._decimal_settings = decimal_settings()
        self._numpy_settings = numpy_settings()
        self._known_classes: dict[int, type] = {}
        self._of_numpy: dict[type, bool] = {}

    def before(self, function: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note that a C function is about to be called."""
        owner, name = receiver_of(function, args)
        if decimal.Decimal in map(type, args) or type(owner) is decimal.Decimal:
            self._answers[DECIMAL_SETTINGS] = self._decimal_settings
        self._numpy((*args, owner, function))
        self._require_no_memory((function, *args, *kwargs.values(), owner), name)
        if owner is None:
            self._function(function, args, kwargs)
        elif id(type(owner)) not in self._known_classes or name in SPECIAL_NAMES:
            self._method(function, owner, name, (args, kwargs))

    def _numpy(self, operands: Iterable[Any]) -> None:
        """Guard NumPy's settings if C code receives a NumPy object. An array of Python objects is a loud sharp edge."""
        for operand in operands:
            kind = type(operand)
            if (of_numpy := self._of_numpy.get(kind)) is None:
                of_numpy = self._of_numpy[kind] = is_numpy_class(kind)
            if not of_numpy:
                continue
            self._guard_numpy_settings()
            holds_objects = getattr(getattr(operand, "dtype", None), "hasobject", False)
            if holds_objects and (path := self._outside.path_of(operand)) is not None:
                self._note_edge(f"C code whose reads are not known: an array of objects at {path}", loud=True)

    def _guard_numpy_settings(self) -> None:
        """Guard NumPy's settings from before the program, which may change them temporarily."""
        self._answers.setdefault(NUMPY_SETTINGS, self._numpy_settings)

    def python_function(self, package: str) -> None:
        """Note that a Python function of a package is about to be called natively."""
        if package == "numpy":
            self._guard_numpy_settings()

    def _function(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note that a function of a module, or a class, is about to be called."""
        number = id(function)
        if number in OPERATOR_LIKE:
            self.operation(function, args)
        elif number in DEEP:
            self._pickle((args, kwargs))
        elif number in CONTEXTUAL:
            self._answers[DECIMAL_SETTINGS] = self._decimal_settings
        elif function is dir and len(args) == 1:
            self.list_names(args[0])

    def list_names(self, owner: object) -> None:
        """Guard the names of an object that `dir` is about to list."""
        self._outside.names(owner, self._is_users_class)

    def _has_known_reads(self, kind: type) -> bool:
        """Whether the reads of all methods of a C class are known."""
        if id(kind) in self._known_classes:
            return True
        has_known_reads = native_state_of(kind) not in UNKNOWN_READS
        if has_known_reads:
            self._known_classes[id(kind)] = kind
        return has_known_reads

    def _method(self, function: object, owner: object, name: str, arguments: object) -> None:
        if name == "dump" and isinstance(owner, _pickle.Pickler):
            self._pickle(arguments)
        elif name in WHOLE_READERS:
            for value in (owner, *self._outside.attributes(owner)):
                self._outside.expand(value)
        elif name == LISTING:
            self.list_names(owner)
        elif self._has_known_reads(type(owner)) or is_getter_or_lock_method(owner, name):
            return
        elif self._outside.path_of(owner) is not None and not runs_python(function):
            path = self._outside.path_of(owner)
            self._note_edge(f"C code whose reads are not known: {name_of(type(owner))}.{name} of {path}", loud=True)

    def _require_no_memory(self, operands: Iterable[object], name: str) -> None:
        """Leave to eager PyTorch a C function that may read a mapped file or what a pointer of ctypes points to."""
        for operand in operands:
            kind = type(operand)
            if id(kind) in self._known_classes or self._has_known_reads(kind) or name in READS_NO_MEMORY:
                continue
            if native_state_of(kind) is NativeState.MEMORY:
                self._leave_to_eager(f"the program reads memory through a {name_of(kind)}", READ_MEMORY)

    def _pickle(self, arguments: object) -> None:
        """Guard everything that C code is about to pickle. The bytes would contain the values of tensors."""
        if self._outside.expand_deeply(arguments):
            self._leave_to_eager(
                "the program pickles a tensor, whose values are not known while tracing", PICKLE_OUTSIDE
            )

    def after(self, function: object, args: tuple[Any, ...], kwargs: dict[str, Any], value: object) -> None:
        """Note that a C function has returned. A method that only reads is called again at each call."""
        if function is dict or getattr(function, "__name__", "") == "fromkeys":
            self._keys(value)
        owner, name = receiver_of(function, args)
        if (
            owner is None
            or kwargs
            or id(type(owner)) in self._known_classes
            or native_state_of(type(owner)) is not NativeState.GETTERS
            or not is_getter(type(owner), name)
        ):
            return
        method_args = args if getattr(function, "__self__", None) is owner else args[1:]
        if all(map(is_constant, method_args)):
            self._outside.guard_method_call(owner, name, method_args, value)

    def _keys(self, mapping: object) -> None:
        """Guard the keys of a mapping that C code has made, because C code has hashed and compared them."""
        for key in mapping if type(mapping) is dict else ():
            if not is_constant(key):
                self._outside.expand_whole(key, dict)

    def operation(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> None:
        """Note that an operator is about to be applied to objects, possibly by C code."""
        if decimal.Decimal in map(type, operands):
            self._answers[DECIMAL_SETTINGS] = self._decimal_settings
        self._numpy(operands)
        self._require_no_memory(operands, function.__name__)
        for operand in operands:
            kind = type(operand)
            if id(kind) in self._known_classes or self._has_known_reads(kind):
                continue
            is_own = self._outside.path_of(operand) is None and kind is not contextvars.Context
            if native_state_of(kind) is not NativeState.OPAQUE or is_own:
                continue
            special = IDENTITY.get(function)
            if special is None or type_lookup(kind, special) is not getattr(object, special):
                path = self._outside.path_of(operand) or "contextvars.copy_context()"
                self._note_edge(f"C code whose reads are not known: {name_of(kind)} at {path}", loud=True)


def is_numpy_class(kind: type) -> bool:
    """Whether a class belongs to NumPy, so that NumPy's settings affect its arithmetic and printing."""
    return str(getattr(kind, "__module__", None)).partition(".")[0] == "numpy"


def receiver_of(function: object, args: tuple[Any, ...]) -> tuple[Any, str]:
    """Return the object that a C method is called on (None for functions of modules and classes), and its name."""
    name = getattr(function, "__name__", "")
    if args and type(function) is types.BuiltinMethodType and is_function_of_pybind11(function):
        unbound = type_lookup(type(args[0]), name)
        return (args[0] if getattr(unbound, "__func__", None) is function else None), name
    owner = args[0] if type(function) in UNBOUND and args else getattr(function, "__self__", None)
    return (None if isinstance(owner, types.ModuleType | type) else owner), name


def is_getter_or_lock_method(owner: object, name: str) -> bool:
    """Whether a method can be called again, or only acquires or releases a lock."""
    return native_state_of(type(owner)) is NativeState.GETTERS and (
        name in LOCK_METHODS or is_getter(type(owner), name)
    )
