"""Reads of C functions, except reads of containers: known reads are guarded, and unknown reads are sharp edges."""

from __future__ import annotations

import _pickle
import contextvars
import decimal
import operator
import types
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from thunder_core.frontend.acquire.outside.attributes import runs_python
from thunder_core.frontend.acquire.outside.containers import UNBOUND_METHOD_CLASSES
from thunder_core.frontend.acquire.outside.native_functions import is_record_of_pybind11
from thunder_core.frontend.acquire.outside.native_kinds import (
    LOCK_METHODS,
    NativeState,
    is_getter,
    name_of,
    native_state_of,
)
from thunder_core.frontend.acquire.outside.whole_reads import WholeReads
from thunder_core.frontend.interpreter.callables import callable_attribute, callable_name
from thunder_core.frontend.interpreter.lookup import type_lookup
from thunder_core.tracing.ir.constants import is_constant
from thunder_core.tracing.library.states import decimal_settings, numpy_settings

# C methods that read all attributes and items of an object.
COMPLETE_READERS = frozenset({"__reduce__", "__reduce_ex__", "__getstate__", "__copy__", "__deepcopy__", "__sizeof__"})
DECIMAL_SETTINGS = "decimal_settings()"
NUMPY_SETTINGS = "numpy_settings()"
CONTEXTUAL_FUNCTIONS = (decimal.Decimal, decimal.getcontext, decimal.localcontext)
DEEP_FUNCTIONS = (_pickle.dumps, _pickle.dump)
FIX_FOR_PICKLE = "pickle or save the tensor outside the compiled program"
FIX_FOR_MEMORY = "read the memory outside the compiled program and pass the values, or make a tensor of it"
FUNCTIONS_WITHOUT_MEMORY_READS = frozenset(
    {"frombuffer", "type", "isinstance", "is_", "is_not", "id", "bool", "truth", "not_"}
)
UNKNOWN_READS = (NativeState.OPAQUE, NativeState.GETTERS, NativeState.MEMORY)
DIR_METHOD = "__dir__"
METHODS_OF_ALL_CLASSES = COMPLETE_READERS | {DIR_METHOD}
OWNERS_OF_FUNCTIONS = (types.ModuleType, type)  # the classes of `__self__` of functions that are not methods
# Functions that read their arguments as operators do.
OPERATOR_LIKE_FUNCTIONS = (
    *(len, iter, next, list, tuple, set, dict, sum, min, max, any, all, sorted, repr, str, bytes, hash),
    *(enumerate, zip),
)
OPERATOR_LIKE_IDS, DEEP_IDS, CONTEXTUAL_IDS = (
    frozenset(map(id, functions)) for functions in (OPERATOR_LIKE_FUNCTIONS, DEEP_FUNCTIONS, CONTEXTUAL_FUNCTIONS)
)
# Comparisons that read nothing of an instance if its class inherits this special method from `object`.
IDENTITY_COMPARISONS = {operator.eq: "__eq__", operator.ne: "__ne__", operator.is_: "__eq__", operator.is_not: "__ne__"}


class NativeReads:
    """Guards the reads of C functions and operators, and calls `note_edge` for unknown reads.

    `answers` maps queries (Python source) to the results that the prologue checks.
    """

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
        self._usual_classes: dict[int, type] = {}
        self._is_of_numpy: dict[type, bool] = {}

    def before_call(self, function: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Guard the reads of a C function that is about to be called."""
        owner, name = owner_and_name(function, args)
        if not self._are_usual(operands := (function, *args, *kwargs.values(), owner)):
            if decimal.Decimal in map(type, args) or type(owner) is decimal.Decimal:
                self._answers[DECIMAL_SETTINGS] = self._decimal_settings
            self._guard_numpy((*args, owner, function))
            self._require_no_memory(operands, name)
        if owner is None:
            self._note_function(function, args, kwargs)
        elif id(type(owner)) not in self._known_classes or name in METHODS_OF_ALL_CLASSES:
            self._note_method(function, owner, name, (args, kwargs))

    def _are_usual(self, operands: Iterable[object]) -> bool:
        """Whether operands of C code need no guard of their own: their reads are known, and depend on no settings."""
        for operand in operands:
            kind = type(operand)
            if id(kind) in self._usual_classes:
                continue
            if kind is decimal.Decimal or is_numpy_class(kind) or not self._has_known_reads(kind):
                return False
            self._usual_classes[id(kind)] = kind
        return True

    def _guard_numpy(self, operands: Iterable[Any]) -> None:
        """Guard NumPy's settings if an operand of C code is a NumPy object.

        An array of objects is a loud sharp edge.
        """
        for operand in operands:
            kind = type(operand)
            if (of_numpy := self._is_of_numpy.get(kind)) is None:
                of_numpy = self._is_of_numpy[kind] = is_numpy_class(kind)
            if not of_numpy:
                continue
            self._guard_numpy_settings()
            holds_objects = getattr(getattr(operand, "dtype", None), "hasobject", False)
            if holds_objects and (path := self._outside.path_of(operand)) is not None:
                self._note_edge(f"C code whose reads are not known: an array of objects at {path}", loud=True)

    def _guard_numpy_settings(self) -> None:
        """Guard the settings that NumPy has before the program, because the program may change them temporarily."""
        self._answers.setdefault(NUMPY_SETTINGS, self._numpy_settings)

    def guard_settings_of_package(self, package: str) -> None:
        """Guard the settings that a Python function of a package reads, which is about to be called natively."""
        if package == "numpy":
            self._guard_numpy_settings()

    def _note_function(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Guard the reads of a function of a module, or of a class, that is about to be called."""
        identity = id(function)
        if identity in OPERATOR_LIKE_IDS:
            self.note_operation(function, args)
        elif identity in DEEP_IDS:
            self._guard_pickled((args, kwargs))
        elif identity in CONTEXTUAL_IDS:
            self._answers[DECIMAL_SETTINGS] = self._decimal_settings
        elif function is dir and len(args) == 1:
            self.list_names(args[0])

    def list_names(self, owner: object) -> None:
        """Guard the names of an object that `dir` is about to list."""
        self._outside.guard_names(owner, self._is_users_class)

    def _has_known_reads(self, kind: type) -> bool:
        """Whether the reads of all methods of a class are known."""
        if id(kind) in self._known_classes:
            return True
        has_known_reads = native_state_of(kind) not in UNKNOWN_READS
        if has_known_reads:
            self._known_classes[id(kind)] = kind
        return has_known_reads

    def _note_method(self, function: object, owner: object, name: str, arguments: object) -> None:
        """Guard the reads of a C method, or note that they are unknown."""
        if name == "dump" and isinstance(owner, _pickle.Pickler):
            self._guard_pickled(arguments)
        elif name in COMPLETE_READERS:
            for value in (owner, *self._outside.guard_attributes(owner)):
                self._outside.expand(value)
        elif name == DIR_METHOD:
            self.list_names(owner)
        elif self._has_known_reads(type(owner)) or is_getter_or_lock_method(owner, name):
            return
        elif self._outside.path_of(owner) is not None and not runs_python(function):
            path = self._outside.path_of(owner)
            self._note_edge(f"C code whose reads are not known: {name_of(type(owner))}.{name} of {path}", loud=True)

    def _require_no_memory(self, operands: Iterable[object], name: str) -> None:
        """Request that eager PyTorch makes the call of a C function that may read memory by a pointer or an `mmap`."""
        for operand in operands:
            kind = type(operand)
            if id(kind) in self._known_classes or self._has_known_reads(kind) or name in FUNCTIONS_WITHOUT_MEMORY_READS:
                continue
            if native_state_of(kind) is NativeState.MEMORY:
                self._leave_to_eager(
                    f"the program reads memory through an object of class {name_of(kind)}", FIX_FOR_MEMORY
                )

    def _guard_pickled(self, arguments: object) -> None:
        """Guard everything that C code is about to pickle.

        Request that eager PyTorch makes the call if a tensor is pickled, because the bytes contain its values.
        """
        if self._outside.expand_deeply(arguments):
            self._leave_to_eager(
                "the program pickles a tensor, whose values are not known while tracing", FIX_FOR_PICKLE
            )

    def after_call(self, function: object, args: tuple[Any, ...], kwargs: dict[str, Any], value: object) -> None:
        """Guard the result of a C method that only reads, by calling the method again at each call.

        Guard keys of new dicts.
        """
        owner, name = owner_and_name(function, args)
        if function is dict or name == "fromkeys":
            self._guard_keys(value)
        if (
            owner is None
            or kwargs
            or id(type(owner)) in self._known_classes
            or native_state_of(type(owner)) is not NativeState.GETTERS
            or not is_getter(type(owner), name)
        ):
            return
        method_args = args if callable_attribute(function, "__self__") is owner else args[1:]
        if all(map(is_constant, method_args)):
            self._outside.guard_method_call(owner, name, method_args, value)

    def _guard_keys(self, mapping: object) -> None:
        """Guard the keys of a dict that C code has created, because C code has hashed and compared the keys."""
        for key in mapping if type(mapping) is dict else ():
            if not is_constant(key):
                self._outside.expand_whole(key, dict)

    def note_operation(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> None:
        """Guard the reads of an operator that is about to be applied, or note that they are unknown."""
        if self._are_usual(operands):
            return
        if decimal.Decimal in map(type, operands):
            self._answers[DECIMAL_SETTINGS] = self._decimal_settings
        self._guard_numpy(operands)
        self._require_no_memory(operands, function.__name__)
        for operand in operands:
            kind = type(operand)
            if id(kind) in self._known_classes or self._has_known_reads(kind):
                continue
            is_own = self._outside.path_of(operand) is None and kind is not contextvars.Context
            if native_state_of(kind) is not NativeState.OPAQUE or is_own:
                continue
            special = IDENTITY_COMPARISONS.get(function)
            if special is None or type_lookup(kind, special) is not getattr(object, special):
                path = self._outside.path_of(operand) or "contextvars.copy_context()"
                self._note_edge(f"C code whose reads are not known: {name_of(kind)} at {path}", loud=True)


def is_numpy_class(kind: type) -> bool:
    """Whether a class belongs to NumPy, so that NumPy's settings affect its arithmetic and printing."""
    return str(callable_attribute(kind, "__module__")).partition(".")[0] == "numpy"


def owner_and_name(function: object, args: tuple[Any, ...]) -> tuple[Any, str]:
    """Return the object whose C method a call runs, and the method's name.

    The object is None for a function of a module, and for a method of a class.
    """
    name = callable_name(function)
    if type(function) is types.BuiltinMethodType:
        owner = function.__self__
        if args and is_record_of_pybind11(type(owner)):
            unbound = type_lookup(type(args[0]), name)
            return (args[0] if callable_attribute(unbound, "__func__") is function else None), name
    else:
        is_unbound = type(function) in UNBOUND_METHOD_CLASSES and args
        owner = args[0] if is_unbound else callable_attribute(function, "__self__")
    return (None if issubclass(type(owner), OWNERS_OF_FUNCTIONS) else owner), name


def is_getter_or_lock_method(owner: object, name: str) -> bool:
    """Whether a method only reads its object, or acquires or releases a lock."""
    return native_state_of(type(owner)) is NativeState.GETTERS and (
        name in LOCK_METHODS or is_getter(type(owner), name)
    )
