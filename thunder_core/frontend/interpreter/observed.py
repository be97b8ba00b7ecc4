"""A machine that reports a program's reads, writes and calls to an observer, and uses the values that it returns."""

import operator
from collections import defaultdict
from collections.abc import Callable
from types import FunctionType
from typing import Any

from thunder_core.frontend.interpreter import attributes, operators
from thunder_core.frontend.interpreter.callables import callable_name
from thunder_core.frontend.interpreter.decode import is_opaque, observed_programs
from thunder_core.frontend.interpreter.frame import Arguments, Find, Frame, Keywords
from thunder_core.frontend.interpreter.lookup import type_lookup
from thunder_core.frontend.interpreter.machine import PlainMachine
from thunder_core.frontend.interpreter.namespaces import cell_contents
from thunder_core.frontend.interpreter.native import unwrap
from thunder_core.frontend.interpreter.observer import NOT_TAKEN, WRITTEN, Observer
from thunder_core.frontend.interpreter.operators import PRIMITIVE_TYPES
from thunder_core.frontend.interpreter.profiler import NativeCodeProfiler
from thunder_core.frontend.interpreter.reach import Functions, Reach, stored_keys
from thunder_core.frontend.interpreter.redirection import Redirection, UncachedValueError
from thunder_core.frontend.interpreter.texts import concatenate

# Operators that make a string from other strings.
STRING_OPERATORS = frozenset({operator.add, operator.iadd, operator.mod, concatenate})
_DEFAULTDICT_MISSING = defaultdict.__missing__
# Functions that C code calls to find a key or a member.
LOOKUP_HOOKS = frozenset({"__hash__", "__eq__"})
# Sequences whose lookup of an index runs no Python code.
_C_SEQUENCES = frozenset({list, tuple, str, bytes})


def _is_indexed_in_c(container: object) -> bool:
    """Whether the lookup of a primitive key in a container runs no Python code, such as `__eq__` of a stored key."""
    kind = type(container)
    return kind in _C_SEQUENCES or (kind is dict and not stored_keys(container))


def _makes_missing_items(kind: type) -> bool:
    """Whether a type inherits `defaultdict.__missing__`, which creates missing items with a factory."""
    return issubclass(kind, defaultdict) and type_lookup(kind, "__missing__") is _DEFAULTDICT_MISSING


class ObservedMachine(PlainMachine):
    """The machine of an observed run."""

    def __init__(self, observer: Observer) -> None:
        super().__init__(observed_programs)
        self.observer: Observer = observer
        self.redirection: Redirection | None = None
        self.reach = Reach(self._is_redirected, observer.quiet_types)
        self.profiler = NativeCodeProfiler(observer.on_native_code) if observer.watches_native_code else None
        observer.on_start(self)

    def _is_redirected(self, function: FunctionType) -> bool:
        """Whether calls of a function from C code are redirected to the machine."""
        return not is_opaque(function.__code__) and self.observer.interprets(function)

    def invoke(self, function: object, arguments: Arguments, keywords: Keywords) -> Any:
        """Announce a call to the observer, and make the call unless the observer returned its result."""
        announced = tuple(arguments)
        value = self.observer.on_call(function, announced, keywords.copy())
        if value is not NOT_TAKEN:
            return self.observer.on_call_result(function, announced, keywords, value)
        del announced
        return self.invoke_quietly(function, arguments, keywords)

    def call_native(self, function: object, arguments: Arguments, keywords: Keywords) -> Any:
        """Call a function natively, and report the result."""
        arguments = tuple(arguments)
        return self.observer.on_call_result(
            function, arguments, keywords, self.call_unreported(function, arguments, keywords)
        )  # fmt: skip

    def call_unreported(self, function: object, arguments: Arguments, keywords: Keywords) -> Any:
        """Call a function natively, without a report. Python functions that the C code may call are interpreted."""
        reached = self.reach.functions_of_call(function, arguments, keywords)
        return self._call_redirected(reached, function, arguments, keywords)

    def call_uninterpreted(self, function: object, arguments: Arguments, keywords: Keywords) -> Any:
        """Call a function natively, even a Python function. Python functions among its arguments are interpreted."""
        return self._call_redirected(
            self.reach.functions_of_values(*arguments, *keywords.values()), function, arguments, keywords
        )

    def _call_redirected(self, reached: Functions, function: object, arguments: Arguments, keywords: Keywords) -> Any:
        """Call `function` natively. Meanwhile, calls of the `reached` functions are redirected to the machine."""
        if not reached:
            return self._run_natively(function, arguments, keywords)
        redirection = Redirection(self)
        try:
            redirection.add(reached)
            return self._run_natively(function, arguments, keywords)
        finally:
            redirection.end()

    def call_cached(self, cached: Any, arguments: Arguments, keywords: Keywords) -> Any:
        """Call a function under `functools.lru_cache`, and report the value to the observer.

        The C code of the cache looks up the value. On a miss, the C code calls the function, which is interpreted.
        """
        arguments = tuple(arguments)
        if self.observer.computes_cached_values(cached):
            return self.invoke(cached.__wrapped__, arguments, keywords)
        redirection = Redirection(self)
        redirection.cached = cached
        try:
            redirection.add(self.reach.functions_of_call(cached, arguments, keywords))
            value = self._run_natively(cached, arguments, keywords)
            if not redirection.missed:
                self.observer.on_cached(cached, arguments, dict(keywords), value, hit=True)
        except UncachedValueError as passed:
            value = passed.value
        finally:
            redirection.end()
        return self.observer.on_call_result(cached, arguments, keywords, value)

    def call_back(self, function: object, arguments: Arguments, keywords: Keywords) -> Any:
        """Call a function on behalf of C code, with redirections suspended; then redirect the result's functions."""
        if callable_name(function) not in LOOKUP_HOOKS:
            return self.call_from_c(self.invoke, function, arguments, keywords)
        return self.call_from_c(self.invoke_hook, function, arguments)

    def next_for_native(self, iterator: object) -> Any:
        """Return the next value of an iterator on behalf of C code."""
        return self.observer.iterated_value_for_c(self.call_from_c(operators.next_of, self, iterator))

    def resume(self, frame: Frame) -> Any:
        """Run the frame of a generator, which C code may drive."""
        return self.call_from_c(super().resume, frame)

    def _run_natively(self, function: Any, arguments: Arguments, keywords: Keywords) -> Any:
        """Call a function natively, with a profiler if the observer watches native code."""
        arguments, keywords = self.arguments_for_c(function, arguments, keywords)
        try:
            if self.profiler is None:
                return function(*arguments, **keywords)
            return self.profiler.call(function, arguments, keywords)
        except TypeError as error:
            if self.observer.substitutes_arguments:
                self.observer.on_refusal(error)
            raise

    def arguments_for_c(self, function: object, arguments: Arguments, keywords: Keywords) -> tuple[Arguments, Keywords]:
        """Return the arguments that a C function receives, with the substitutes from the observer, if any."""
        if not self.observer.substitutes_arguments:
            return arguments, keywords
        return self.observer.arguments_for_c(function, arguments, keywords)

    def call_from_c(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of Thunder on behalf of C code, with the redirections of the C code suspended."""
        if self.profiler is not None and self.profiler.watch(False):
            try:
                return self.call_from_c(function, *arguments)
            finally:
                self.profiler.watch(True)
        active = self.redirection
        if active is None:
            return function(*arguments)
        active.suspend()
        try:
            value = function(*arguments)
        finally:
            active.resume()
        active.add(self.reach.functions_of_values(value))
        return value

    def report_result(self, function: object, arguments: Arguments, keywords: Keywords, value: object) -> Any:
        """Report the result of a call that the replacement of a C function made; return the observer's value."""
        return self.observer.on_call_result(function, tuple(arguments), keywords, value)

    def load_attr(self, owner: object, name: str) -> Any:
        """Read an attribute and report the value, or that it is missing. A weak proxy is replaced by its object."""
        owner = unwrap(owner)
        try:
            value = attributes.load(self, owner, name)
        except AttributeError:
            self.observer.on_missing_attr(owner, name)
            raise
        return self.observer.on_load_attr(owner, name, value)

    def invoke_hook(self, hook: FunctionType, arguments: Arguments) -> Any:
        """Call a Python function that a lookup calls, and report its effects."""
        before = self.observer.count_effects()
        try:
            return self.invoke(hook, arguments, {})
        finally:
            if self.observer.count_effects() != before:
                self.observer.on_hook_effects(hook)

    def store_attr(self, owner: object, name: str, value: object) -> None:
        """Write an attribute. A weak proxy is replaced by its object."""
        super().store_attr(unwrap(owner), name, value)

    def delete_attr(self, owner: object, name: str) -> None:
        """Delete an attribute. A weak proxy is replaced by its object."""
        super().delete_attr(unwrap(owner), name)

    def load_global(self, frame: Frame, name: str, find: Find) -> Any:
        """Read a global or builtin, and report the value."""
        return self.observer.on_load_global(frame, name, super().load_global(frame, name, find))

    def store_global(self, frame: Frame, name: str, value: object) -> None:
        """Write a global after reporting it."""
        super().store_global(frame, name, self.observer.on_store_global(frame, name, value))

    def delete_global(self, frame: Frame, name: str) -> None:
        """Delete a global after reporting it."""
        self.observer.on_delete_global(frame, name)
        self._write(frame.globals, super().delete_global, frame, name)

    def load_deref(self, frame: Frame, slot: int) -> Any:
        """Read a cell, and report the value if the variable is free."""
        value = self._contents(frame, slot)
        if slot < frame.program.first_free:
            return value
        return self.observer.on_load_deref(frame, frame.program.names[slot], frame.fast[slot], value)

    def store_deref(self, frame: Frame, slot: int, value: object) -> None:
        """Write a cell, and report the value if the variable is free."""
        if slot >= frame.program.first_free:
            value = self.observer.on_store_deref(frame, frame.program.names[slot], frame.fast[slot], value)
        super().store_deref(frame, slot, value)

    def delete_deref(self, frame: Frame, slot: int) -> None:
        """Empty a cell, and report this if the variable is free."""
        self._contents(frame, slot)
        if slot >= frame.program.first_free:
            self.observer.on_delete_deref(frame, frame.program.names[slot], frame.fast[slot])
        super().delete_deref(frame, slot)

    def _contents(self, frame: Frame, slot: int) -> Any:
        """Return the value in a cell. Report a free variable without a value, and raise NameError."""
        try:
            return cell_contents(frame, slot)
        except NameError:
            if slot >= frame.program.first_free:
                self.observer.on_unbound_deref(frame.fast[slot])
            raise

    def class_of(self, value: object) -> type:
        """Return the class that the observer reports for an operand."""
        return self.observer.class_of(value)

    def operate(self, function: Callable[..., Any], *operands: Any) -> Any:
        """Apply an operation, which is announced to the observer unless all operands have primitive types."""
        for operand in operands:
            if type(operand) not in PRIMITIVE_TYPES:
                if function in STRING_OPERATORS and (text := self.text_of(function, operands)) is not None:
                    return text
                if (value := self.observer.on_operation(function, operands)) is not NOT_TAKEN:
                    return value
                return self._write(operands[0], self.call_unreported, function, operands, {})
        return function(*operands)

    def text_of(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
        """Return the observer's string for a string operation; None if the observer has none."""
        return self.observer.on_text(function, operands)

    def announce_iteration(self, iterable: object) -> None:
        """Announce that C code is about to iterate over an iterable."""
        self.observer.on_operation(list, (iterable,))

    def announce_hash(self, value: object) -> None:
        """Announce that C code is about to hash or compare a value: a key, a member of a set, an item to sort."""
        if type(value) not in PRIMITIVE_TYPES:
            self.observer.on_operation(hash, (value,))

    def announce_identity(self, left: object, right: object) -> None:
        """Announce that two objects are compared with `is`."""
        self.observer.on_operation(operator.is_, (left, right))

    def set_attr_natively(self, hook: object, owner: object, name: str, value: object) -> None:
        """Write an attribute after reporting it."""
        value = self.observer.on_store_attr(owner, name, value)
        if value is not WRITTEN:
            self._write(owner, super().set_attr_natively, hook, owner, name, value)

    def delete_attr_natively(self, hook: object, owner: object, name: str) -> None:
        """Delete an attribute after reporting it."""
        self.observer.on_delete_attr(owner, name)
        self._write(owner, super().delete_attr_natively, hook, owner, name)

    def _write(self, owner: object, write: Callable[..., Any], *arguments: Any) -> Any:
        """Make an announced write. Report to the observer if the write raises, or has side effects of its own."""
        before = self.observer.count_effects()
        try:
            value = write(*arguments)
        except BaseException:
            self.observer.on_unwritten(owner)
            raise
        if self.observer.count_effects() != before:
            self.observer.on_nested_effects(owner)
        return value

    def load_item(self, container: Any, key: object) -> Any:
        """Read an item, and report the value."""
        if (value := self.observer.on_operation(operator.getitem, (container, key))) is not NOT_TAKEN:
            return value
        if _makes_missing_items(type(container)) and not self.call_unreported(operator.contains, (container, key), {}):
            return self._missing_item(container, key)
        if type(key) in PRIMITIVE_TYPES and _is_indexed_in_c(container):
            value = container[key]
        else:
            value = self.call_unreported(operator.getitem, (container, key), {})
        return self.observer.on_subscript(container, key, value)

    def _missing_item(self, container: defaultdict[Any, Any], key: object) -> Any:
        """Make the item of a defaultdict for a missing key, in steps that are reported to the observer."""
        factory = self.load_attr(container, "default_factory")
        if factory is None:
            return self.call_unreported(operator.getitem, (container, key), {})
        value = self.invoke(factory, (), {})
        self.store_item(container, key, value)
        return value

    def store_item(self, container: object, key: object, value: object) -> None:
        """Write an item after reporting it."""
        value = self.observer.on_store_subscript(container, key, value)
        if type(key) in PRIMITIVE_TYPES and type(container) is dict and not stored_keys(container):
            container[key] = value
        else:
            self._write(container, self.call_unreported, operator.setitem, (container, key, value), {})

    def delete_item(self, container: object, key: object) -> None:
        """Delete an item after reporting it."""
        self.observer.on_delete_subscript(container, key)
        self._write(container, self.call_unreported, operator.delitem, (container, key), {})
