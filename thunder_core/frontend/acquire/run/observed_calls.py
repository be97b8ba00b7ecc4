"""The observer's handling of calls: lookasides, recorded operations, native calls and interpreted functions."""

from __future__ import annotations

import types
from typing import Any

import torch

from thunder_core.foundation.package import package_of
from thunder_core.frontend.acquire.lookaside_table import (
    LOOKASIDES,
    is_native_code,
    late_lookaside_of,
    runs_without_redirection,
)
from thunder_core.frontend.acquire.outside.call_traits import owner_of
from thunder_core.frontend.acquire.outside.namespaces import NESTING
from thunder_core.frontend.acquire.outside.sharp import IN_THREAD, LOUD_PREFIXES, edge_of, is_users_code
from thunder_core.frontend.acquire.run.cached_calls import CachedCalls
from thunder_core.frontend.acquire.run.call_rules import CallRules
from thunder_core.frontend.acquire.run.code_origins import CodeOrigins, has_line
from thunder_core.frontend.acquire.run.lookups import LOOKUPS, settle_method
from thunder_core.frontend.acquire.run.observed_reads import ObservedReads
from thunder_core.frontend.acquire.run.options import RunOptions
from thunder_core.frontend.acquire.run.outer_frames import guard_handled_exception
from thunder_core.frontend.acquire.run.pickled_calls import NAMES as NAMES_IN_PICKLE
from thunder_core.frontend.acquire.run.pickled_calls import pickles, refuse_users_code
from thunder_core.frontend.acquire.run.program_state import CallState
from thunder_core.frontend.acquire.run.replacements import Replacements
from thunder_core.frontend.acquire.run.run_inputs import RunInputs
from thunder_core.frontend.acquire.run.symbolic_keys import SymbolicKeys
from thunder_core.frontend.interpreter.callables import callable_attribute, callable_name
from thunder_core.frontend.interpreter.frame import Frame
from thunder_core.frontend.interpreter.lookup import python_method
from thunder_core.frontend.interpreter.observer import NOT_TAKEN
from thunder_core.tracing.capture.symbolic.numbers import SymbolicNumber
from thunder_core.tracing.capture.torch_facts.symbols import PLAIN_CALLABLES, is_higher_order
from thunder_core.tracing.capture.torch_facts.torch_versions import applied_in_c
from thunder_core.tracing.library.objects import is_native

# Special methods whose results C code converts to a number of Python.
CONVERTED_SPECIAL_METHODS = frozenset(
    f"__{name}__" for name in ("index", "int", "float", "complex", "len", "length_hint", "hash")
)
# Modules whose functions read the parameters, the annotations and the texts of functions and classes; and the functions
# that read only the class of an object.
INSPECTING_MODULES = frozenset({"inspect", "typing"})
CHECKS_OF_CLASSES = frozenset({"isclass", "isfunction", "ismethod", "ismodule", "isbuiltin", "isroutine", "cast"})
# The methods that run when a module is called.
ENTRY_METHODS = frozenset({"forward", "__call__", "_call_impl", "_wrapped_call_impl"})
# the code that all functions under `torch._disable_dynamo` share
DYNAMO_DISABLED_CODE = torch.optim.Optimizer.zero_grad.__code__


# Packages whose callable objects lookasides may replace, such as operators of PyTorch.
OWN_PACKAGES = frozenset({"torch", "functorch", "thunder_core", "thunder_executors"})


def is_interpreted_object(kind: type) -> bool:
    """Whether the interpreter runs the `__call__` of the instances of a class: modules, and objects outside PyTorch."""
    called = python_method(kind, "__call__")
    return called is not None and (
        issubclass(kind, torch.nn.Module) or package_of(called.__module__) not in OWN_PACKAGES
    )


class ObservedCalls(ObservedReads):
    """An observer that decides how each call of the program runs."""

    options: RunOptions
    rules: CallRules
    inputs: RunInputs
    replacements: Replacements
    cached_calls: CachedCalls
    symbolic_keys: SymbolicKeys
    calls: CallState
    code_origins: CodeOrigins

    def on_call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call that is not interpreted, and return its result; otherwise return `NOT_TAKEN`.

        Lookasides are tried first. If C code is about to run, its reads of outside objects are guarded. Operations of
        PyTorch are recorded when they run.
        """
        if self.replacements:
            value = self.replacements.call(self, function, args, kwargs)
            if value is not NOT_TAKEN:
                return value
        kind = type(function)
        if issubclass(kind, type):
            self.classes.note_instance(function)
            self.rules.instantiation(self, function)
        elif kind not in PLAIN_CALLABLES and is_interpreted_object(kind):
            return NOT_TAKEN  # nothing reads its attributes, hashes or compares it: that may run any code
        plain = function.__func__ if kind is types.MethodType else function
        try:
            lookaside = LOOKASIDES.get(plain)
        except TypeError:  # an unhashable callable
            lookaside = None
        if lookaside is not None:
            owned = args if plain is function else (function.__self__, *args)
            value = lookaside(self, *owned, **kwargs)
            if value is not NOT_TAKEN:
                return value
        if kind is types.BuiltinFunctionType:
            return self._call_c_function(function, args, kwargs)
        for call in self.rules.python_functions if kind is types.FunctionType else self.rules.callables:
            value = call(self, function, args, kwargs)
            if value is not NOT_TAKEN:
                return value
        if type(plain) is types.FunctionType:
            return self._call_python_function(function, plain, args, kwargs)
        return self._call_object(function, args, kwargs)

    def _call_c_function(
        self, function: types.BuiltinFunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call a function of a module, or a bound method, in C."""
        for call in self.rules.of_c_function(type(function.__self__), function.__name__):
            value = call(self, function, args, kwargs)
            if value is not NOT_TAKEN:
                return value
        if (applied := applied_in_c(function)) is not None:
            return self.rules.from_c(self, function, applied, args, kwargs)
        return self._call_native(function, args, kwargs)

    def _call_object(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call an object that is neither a Python function nor a `BuiltinFunctionType`.

        Return `NOT_TAKEN` if the interpreter must make the call.
        """
        if is_higher_order(function):
            return self.rules.higher_order(self, function, args, kwargs)
        for call in self.rules.objects:
            value = call(self, function, args, kwargs)
            if value is not NOT_TAKEN:
                return value
        return (
            self._call_native(function, args, kwargs)
            if type(function) is not type or is_native(function)
            else NOT_TAKEN
        )

    def _call_native(self, function: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Note the effects of C code that is about to be called.

        Return the result if the call is made here, and otherwise `NOT_TAKEN`.
        """
        self.outside.effects.forget_pending_write()
        if type(function) is types.BuiltinFunctionType:
            self.outside.guard_operation_name(function)
        if type(function) is types.MethodDescriptorType and args and issubclass(type(args[0]), torch.Tensor):
            self.outside.guard_unshadowed(args[0], function)  # generated code calls the method of the tensor
        name = callable_name(function)
        if name in LOOKUPS and settle_method(self, function, args, kwargs):
            return NOT_TAKEN
        value = self.before_native(function, args, kwargs)
        if value is NOT_TAKEN:
            value = self.symbolic_keys.compute(function, args, kwargs)
        if value is NOT_TAKEN and name in NAMES_IN_PICKLE and pickles(function, args):
            return refuse_users_code(self, lambda: self.machine.invoke_quietly(function, args, kwargs))
        return self._call_and_retract_failed_write(function, args, kwargs) if value is NOT_TAKEN else value

    def _call_and_retract_failed_write(self, function: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call C code whose effects are noted.

        If the code raises, remove the effect of its write, and raise the error.
        """
        pending_write = self.outside.effects.pending_write
        if pending_write is None:
            return self.numbers.call_native(function, args, kwargs)
        write_count = self.outside.effects.write_count
        try:
            value = self.numbers.call_native(function, args, kwargs)
            if value is NOT_TAKEN:
                value = self.machine.invoke_quietly(function, args, kwargs)
        except BaseException:
            self.writes.note_failed_write(pending_write)
            raise
        if self.outside.effects.write_count != write_count:  # the epilogue would make these writes twice
            self.leave_to_eager(
                f"`{pending_write.name}` of an object from outside calls a function that also writes to objects from "
                "outside",
                "write outside of this function",
            )
        self.outside.effects.replay_order_of_items(pending_write)
        return value

    def _call_python_function(
        self, function: object, plain: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call a Python function that is not interpreted; return `NOT_TAKEN` for a function to interpret.

        `plain` is the function itself if `function` is a bound method.
        """
        if "_thunder" in plain.__dict__:
            value = self.rules.compiled(self, function, args, kwargs)
            if value is not NOT_TAKEN:
                return value
        if (lookaside := late_lookaside_of(plain)) is not None:
            return lookaside(self, *owner_of(function), *args, **kwargs)
        value = self.rules.foreign(self, function, args, kwargs)
        if value is not NOT_TAKEN:
            return value
        if plain.__code__ is DYNAMO_DISABLED_CODE:
            return self.machine.call(plain.__wrapped__, *owner_of(function), *args, **kwargs)  # type: ignore[attr-defined]
        edge = self._check_edge(plain)
        if edge or self.code_origins.is_operation(plain) or is_native_code(plain):
            return self._call_without_interpreting(function, plain, args, kwargs)
        in_eager = self.options.eager_functions
        if in_eager is not None and has_line(plain.__code__, in_eager.lines) and self._is_not_subject(function):
            return in_eager(self, function, *args, **kwargs)
        self.classes.guard_called_method(plain, (*owner_of(function), *args))
        self.outside.guard_defaults(plain)
        return NOT_TAKEN

    def _call_without_interpreting(
        self, function: Any, plain: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Guard all contents of the arguments of a Python function, and call the function without interpreting it."""
        value = self.rules.uninterpreted(self, function, args, kwargs)
        if value is not NOT_TAKEN:
            return value
        is_operation = self.code_origins.is_operation(plain)
        if is_operation:
            self.outside.guard_operation_name(plain)
            self.native_calls.require_no_outside_iterator(function, (*args, *kwargs.values()))
        is_inspecting = plain.__module__ in INSPECTING_MODULES and plain.__name__ not in CHECKS_OF_CLASSES
        is_inspecting &= not plain.__name__.startswith("_")  # the steps of an interpreted function of these modules
        for arg in (*owner_of(function), *args, *kwargs.values()):
            self.outside.expand_whole(arg)
            if is_inspecting:
                self.outside.guard_inspected(arg, self.classes.is_users)
        if not is_operation:
            value = self.numbers.call_native(function, args, kwargs)
            if value is not NOT_TAKEN:
                return value
        if runs_without_redirection(plain.__module__, plain.__name__):
            return function(*args, **kwargs)
        return self.machine.call_uninterpreted(function, args, kwargs)

    def _is_not_subject(self, function: object) -> bool:
        """Whether a function is neither the traced function or module itself, nor the `forward` of the module."""
        subject = self.inputs.subject
        is_method = callable_attribute(function, "__self__") is subject
        return function is not subject and not (is_method and callable_name(function) in ENTRY_METHODS)

    def on_enter(self, frame: Frame) -> None:
        """Note the code of a function that starts, if the codes of a loop or branch are collected."""
        if self.calls.entered_codes is not None:
            self.calls.entered_codes.add(frame.code)

    def on_raise(self, error: BaseException) -> None:
        """Store a `KeyboardInterrupt` that the program itself raises, to distinguish it from the user's Ctrl-C."""
        if issubclass(type(error), KeyboardInterrupt):
            self.calls.note_interrupt(error)

    def on_reraise(self, error: BaseException | None) -> None:
        """Guard the exception that a bare `raise` raises again, if it is not the program's own."""
        guard_handled_exception(self, error)

    def on_cache_miss(self, cached: object) -> None:
        """Note that a function under `functools.lru_cache` is about to compute a value that its cache lacks."""
        self.cached_calls.note_miss(cached)

    def computes_cached_values(self, cached: object) -> bool:
        """Whether calls of a function under `functools.lru_cache` compute their values, because its cache overflows."""
        self.cached_calls.note_call(cached)
        return self.cached_calls.computes(cached)

    def on_cached(
        self, cached: object, arguments: tuple[Any, ...], keywords: dict[str, Any], value: object, *, hit: bool
    ) -> bool:
        """Guard the cache of `functools.lru_cache`, and return whether a new value stays in it."""
        return self.cached_calls.guard_result(cached, arguments, keywords, value, hit=hit)

    def interprets(self, function: types.FunctionType) -> bool:
        """Whether a Python function that C code calls is interpreted.

        Native functions and most of PyTorch's are not.
        """
        return self.code_origins.interprets(function)

    def on_called_back(self, function: types.FunctionType, value: object) -> Any:
        """Return the result of a Python function for the C code that called it.

        A symbolic number becomes a plain number if C code converts it. The results of other special methods, such as
        `__add__`, stay symbolic.
        """
        name = function.__name__
        if isinstance(value, SymbolicNumber) and (name in CONVERTED_SPECIAL_METHODS or name[:2] != "__"):
            return value.concretize()
        if issubclass(type(value), NESTING):
            self.outside.expand_whole(value)
        return self.iterated_value_for_c(value)

    def on_native_code(self, code: types.CodeType) -> None:
        """Report user code that C code ran natively, because its reads are not guarded."""
        if is_users_code(code):
            self.note_edge(f"{code.co_qualname} ran natively, and no guard checks what it reads")

    def _check_edge(self, function: object) -> bool:
        """Note the sharp edge of calling a function, if any; return whether there is one.

        Raises `Retrace` for a function that starts a thread, if eager PyTorch may make the call.
        """
        edge = edge_of(function)
        if edge is not None and edge.startswith(IN_THREAD) and self.options.leaves_threads_to_eager:
            self.leave_to_eager("the program starts a thread, whose code is not traced", "start it outside the program")
        if edge is not None:
            self.note_edge(edge, loud=edge.startswith(LOUD_PREFIXES) and not self.outside.is_functional)
        return edge is not None

    def on_branch(self, frame: Frame, condition: object, if_true: int, if_false: int) -> Any:
        """Record the arms of a branch on a tensor."""
        return self.rules.branch(self, frame, condition, if_true, if_false)

    def before_native(self, function: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Note the effects of a C function on its arguments.

        Return the result if the call is made here, because it consumes an iterator; otherwise return `NOT_TAKEN`.
        """
        self._check_edge(function)
        self.native_reads.before_call(function, args, kwargs)
        return self.native_calls.before_call(self.machine, function, args, kwargs)
