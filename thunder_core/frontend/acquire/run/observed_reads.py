"""The observer's handling of reads and operators: reads of outside objects are guarded."""

# ruff: noqa: ARG002 (each event has the arguments of the protocol)

from __future__ import annotations

import contextvars
import operator
import types
import weakref
from collections.abc import Callable
from contextlib import suppress
from enum import EnumMeta
from typing import Any, cast

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.graph import Node

from thunder_core.frontend.acquire.backward_hooks import METHODS_OF_NODES
from thunder_core.frontend.acquire.numbers import arguments_for_c
from thunder_core.frontend.acquire.outside.attributes import MISSING, guard_added_entry, guard_not_in_instance
from thunder_core.frontend.acquire.outside.call_traits import (
    dereferenced_reference,
    is_making_class,
    is_plain_mapping,
)
from thunder_core.frontend.acquire.outside.classes import Classes
from thunder_core.frontend.acquire.outside.containers import (
    compares_in_python,
    container_base,
    container_type,
    is_consumed,
    lacks_key,
)
from thunder_core.frontend.acquire.outside.drawing_functions import is_generator
from thunder_core.frontend.acquire.outside.draws import NotReplayedError
from thunder_core.frontend.acquire.outside.namespaces import (
    FUNCTION_TRANSFORMS,
    is_index_into,
    is_plain_membership_test,
)
from thunder_core.frontend.acquire.outside.outside import FIXED_NAMES_OF_MEMBERS
from thunder_core.frontend.acquire.outside.snapshots import can_delete
from thunder_core.frontend.acquire.run.context_variables import LOOKUPS, ContextVariables
from thunder_core.frontend.acquire.run.drawn_arrays import is_drawn, operate_in_prologue, store_item
from thunder_core.frontend.acquire.run.lookups import settle_lookup
from thunder_core.frontend.acquire.run.observed_writes import ObservedWrites
from thunder_core.frontend.acquire.run.outer_frames import guard_handled_exception, require_frame_of_program
from thunder_core.frontend.acquire.run.recorded_arms import require_known_identity
from thunder_core.frontend.acquire.run.shown_classes import CLASSES, READ_NODE, shown_class
from thunder_core.frontend.acquire.texts import Texts, with_plain_strings
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.frame import Frame
from thunder_core.frontend.interpreter.lookup import python_method, type_lookup
from thunder_core.frontend.interpreter.observer import NOT_TAKEN
from thunder_core.tracing.capture.symbolic.numbers import SymbolicNumber
from thunder_core.tracing.capture.torch_facts.autograd_nodes import FROM_OUTSIDE
from thunder_core.tracing.capture.torch_facts.storages import shown_device
from thunder_core.tracing.capture.torch_facts.texts import SymbolicText
from thunder_core.tracing.ir.stored_attributes import namespace_of
from thunder_core.tracing.ir.tree import leaves

READ_STATE = "read the state before the first draw, or outside the compiled program"
READ_ATTRIBUTES = "read and set single attributes of the tensor, by `getattr`, `hasattr` and `setattr`"
READ_VARIABLE = "read the value of the context variable before the program sets the variable"
IN_PLACE_METHODS: dict[Callable[..., Any], str] = {
    operator.iadd: "__iadd__",
    operator.ior: "__ior__",
    operator.iand: "__iand__",
    operator.isub: "__isub__",
    operator.ixor: "__ixor__",
    operator.imul: "__imul__",
}
# Names of attributes that the program does not always get as they are.
NAMES_WITH_RULES = frozenset({"__class__", "__context__", "__dict__", "device", "f_back", "state", "old_value"})
KEY_LOOKUPS = (operator.contains, operator.getitem)
# Owners without a path whose attribute reads need no guard on the class of the owner.
OWNERS_WITHOUT_CLASS_GUARDS = (torch.Tensor, type, types.ModuleType, types.FunctionType, types.MethodType)


def is_symbolic(key: object) -> bool:
    """Whether a key is or contains a symbolic number or text."""
    return any(issubclass(type(leaf), SymbolicNumber | SymbolicText) for leaf in leaves(key))


def has_tensors(operands: tuple[Any, ...]) -> bool:
    """Whether an operand is a tensor, whose class makes the comparison or the lookup."""
    for operand in operands:  # noqa: SIM110 - a generator takes three times as long
        if issubclass(type(operand), torch.Tensor):
            return True
    return False


class ObservedReads(ObservedWrites, TracedRun):
    """An observer that guards the reads of outside objects."""

    classes: Classes
    texts: Texts
    context_variables: ContextVariables

    def on_load_global(self, frame: Frame, name: str, value: object) -> Any:
        """Guard a global or builtin that is read.

        A value from a dict subclass with its own lookup is not guarded here: the interpreter runs the lookup.
        """
        stored = dict.get(frame.globals, name, MISSING)
        if dict.get(frame.globals, "__name__") in FUNCTION_TRANSFORMS:
            return value
        if stored is value:
            number_path = self.outside.symbolic_global_path(frame.globals, name, value)
            if number_path is not None:
                return self.numbers.at(number_path)
            self.outside.guard_global(frame.globals, name, value)
        elif stored is MISSING:
            self.outside.guard_builtin(frame.globals, frame.builtins, name, value)
        return value

    def on_load_deref(self, frame: Frame, name: str, cell: object, value: object) -> Any:
        """Guard a read of a closure variable of an outside function."""
        number_path = self.outside.symbolic_path(cell, "cell_contents", value, is_item=False)
        if number_path is not None:
            return self.numbers.at(number_path)
        self.outside.note_attribute_read(cell, "cell_contents", value)
        return value

    def on_unbound_deref(self, cell: object) -> None:
        """Guard that a closure variable of an outside function has no value."""
        self.outside.note_missing_attribute(cell, "cell_contents")

    def on_load_attr(self, owner: Any, name: str, value: Any) -> Any:
        """Guard an attribute of an outside object.

        Return the class in eager PyTorch for the `__class__` of a symbolic number, a symbolic text or a fake.
        """
        if name in NAMES_WITH_RULES and (shown := self._shown_attribute(owner, name, value)) is not None:
            return shown
        if issubclass(type(owner), FROM_OUTSIDE) and name not in METHODS_OF_NODES:
            self.leave_to_eager("the program reads a node of a graph from outside", READ_NODE)
        if issubclass(type(value), FakeTensor | tuple) and issubclass(type(owner), Node):
            return self.recorder.tensors.to_real(value)
        number_path = self.outside.symbolic_path(owner, name, value, is_item=False)
        if number_path is not None:
            return self.numbers.at(number_path)
        if isinstance(type(owner), EnumMeta) and name not in FIXED_NAMES_OF_MEMBERS:
            self._note_member(owner)
        if self.outside.path_of(owner) is None:
            if issubclass(type(owner), type):
                self.classes.note_attribute_read(owner)
            elif issubclass(type(owner), torch.Tensor):  # not isinstance, which reads the owner's own `__class__`
                guard_added_entry(self.outside, self.class_of(owner), name)
            elif issubclass(type(owner), super):
                self.classes.guard_super_lookup(owner, name)
            elif not issubclass(type(owner), OWNERS_WITHOUT_CLASS_GUARDS):
                self.classes.guard_attribute(owner, name)
        elif self.outside.effects.has_written(owner, name):
            self._guard_inherited(owner, name)
        self.outside.note_attribute_read(owner, name, value)
        return value

    def _note_member(self, member: Any) -> None:
        """Make a member of an enumeration a root if C code has returned it, because its attributes may change."""
        if self.outside.path_of(member) is None and not self.outside.is_created_by_program(type(member)):
            self.outside.root("class", str(member.name), member)

    def _guard_inherited(self, owner: Any, name: str) -> None:
        """Guard where Python finds an attribute that the program has written in a class, or deleted from the object."""
        if can_delete(owner, name):
            return  # the object itself has the attribute, with the value that the program has set
        kind = owner if issubclass(type(owner), type) else type(owner)
        if kind is not owner and self.outside.effects.attribute_existed(owner, name) is None:
            guard_not_in_instance(self.outside, self.outside.paths[id(owner)], name, type_lookup(kind, name))
        self.classes.guard_defining_class(kind, name)

    def _shown_attribute(self, owner: Any, name: str, value: Any) -> Any:
        """Return what the program sees in place of an attribute in `NAMES_WITH_RULES`; None for the attribute itself.

        Leave to eager PyTorch, or refuse, what a trace cannot represent.
        """
        if name == "__class__":
            return shown_class(owner)
        if name == "__dict__" and type(owner) is FakeTensor:
            self.leave_to_eager("the program reads the `__dict__` of a computed tensor", READ_ATTRIBUTES)
        if name == "device":
            return shown_device(owner)
        if name == "__context__" and issubclass(type(owner), BaseException):
            guard_handled_exception(self, value)
        if name == "f_back":
            require_frame_of_program(self, owner, value)
        if name == "state" and self.draws.paths and is_generator(owner):
            self.refuse("the program reads the state of a NumPy generator after a draw", READ_STATE)
        if name == "old_value" and type(owner) is contextvars.Token:
            self.leave_to_eager("the program reads the old value of a token", READ_VARIABLE)
        return None

    def on_load_stored(self, owner: object, name: str, value: object) -> None:
        """Guard a value that an object with its own `__getattribute__` stores, or that a class of the user defines."""
        kind = type(owner)
        if issubclass(kind, type) and name[:2] != "__":
            self.classes.guard_defining_class(cast(type, owner), name)
            return
        if self.classes.is_users(kind) and lacks_key(namespace := namespace_of(owner), name):
            path = self.outside.path_of(owner)
            if path is not None and not self.outside.effects.has_written(owner, name):
                self.outside.guard_absence(path.attribute("__dict__", namespace), name)
            self.classes.guard_defining_class(kind, name)
        self.outside.note_stored_read(owner, name, value)

    def on_call_result(self, function: object, args: tuple[Any, ...], kwargs: dict[str, Any], value: Any) -> Any:
        """Note a class or a weak reference that the program makes, a dereference, and the reads of other C code."""
        if function is weakref.ref and len(args) == 1 and not kwargs:
            self.outside.note_reference(value, args[0])
        elif (reference := dereferenced_reference(function)) is not None:
            self.outside.note_dereference(reference, value)
        elif not self.context_variables.has_set(function):
            self.native_reads.after_call(function, args, kwargs, value)
        if issubclass(type(value), type) and (function is __build_class__ or is_making_class(function, args)):
            self.outside.note_class(value)
        return value

    def on_missing_attr(self, owner: object, name: str) -> None:
        """Guard the absence of an attribute.

        If a getter in Python has raised the error, its reads are guarded, and a guard must not call the getter again.
        """
        unbound = type_lookup(type(owner), name)
        if isinstance(unbound, property) or python_method(type(unbound), "__get__") is not None:
            self.classes.guard_defining_class(type(owner), name)
            return
        self.outside.note_missing_attribute(owner, name)
        if issubclass(type(owner), torch.Tensor):
            self.outside.guard_unhidden(self.class_of(owner), name, is_stored=False)
        elif issubclass(type(owner), super):
            self.classes.guard_super_lookup(owner, name)

    def on_subscript(self, container: object, key: object, value: object) -> Any:
        """Guard a read of an item of an outside container."""
        number_path = self.outside.symbolic_path(container, key, value, is_item=True)
        if number_path is not None:
            return self.numbers.at(number_path)
        self.outside.note_item_read(container, key, value)
        return value

    def on_store_attr(self, owner: object, name: str, value: object) -> Any:
        """Log a write to an attribute. Guard that no property of a user's class hides the attribute that is stored.

        A slot of the class stores the attribute itself.
        """
        is_stored = self.outside.path_of(owner) is not None and type(namespace_of(owner)) is dict
        is_slot = type(type_lookup(type(owner), name)) is types.MemberDescriptorType
        if is_stored and not is_slot and name[:2] != "__" and self.classes.is_users(type(owner)):
            self.outside.guard_unhidden(type(owner), name, is_stored=True)
        return super().on_store_attr(owner, name, value)

    def on_store_subscript(self, container: object, key: object, value: object) -> Any:
        """Log a write to an item. A write to a random array is made by the prologue, too."""
        if self.draws.arrays and is_drawn(self, container):
            with suppress(NotReplayedError):
                return store_item(self, container, key, value)
        return super().on_store_subscript(container, key, value)

    def class_of(self, value: object) -> type:
        """Return an operand's class in eager PyTorch.

        The class of a fake would change the order of reflected operators.
        """
        return CLASSES.get(type(value), type(value))

    @property
    def substitutes_arguments(self) -> bool:  # type: ignore[override]
        """Whether the program has symbolic texts or numbers, which native functions must receive as plain values."""
        return self.texts.has_symbolic or self.recorder.numbers.has_symbolic

    def on_text(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
        """Return a symbolic text for a string that depends on unknown values, or None for another string.

        The string is guarded only if the program reads it.
        """
        return self.texts.text_of_call(function, operands)

    def arguments_for_c(self, function: object, args: object, kwargs: object) -> tuple[Any, Any]:
        """Return the arguments of a native function, with symbols replaced by the strings and numbers of this call."""
        if self.recorder.numbers.has_symbolic:
            args, kwargs = arguments_for_c(function, args, kwargs)
        return self.texts.arguments_for_c(function, args, kwargs) if self.texts.has_symbolic else (args, kwargs)

    def iterated_value_for_c(self, value: object) -> Any:
        """Return a value that an iterator of the program passes to C code, with symbolic texts replaced by strings."""
        return with_plain_strings(value, set()) if self.texts.has_symbolic else value

    def on_refusal(self, error: TypeError) -> None:
        """Note an error of a native function that may have received a symbolic text within an object."""
        if self.texts.has_symbolic:
            self.texts.note_refusal(error)

    def on_operation(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
        """Apply an operator to random arrays, symbolic numbers or contexts. Guard the reads of other operators.

        Return `NOT_TAKEN` if the interpreter must apply the operator.
        """
        may_be_computed = self.draws.arrays or self.recorder.numbers.has_symbolic
        if may_be_computed and (value := operate_in_prologue(self, function, operands)) is not NOT_TAKEN:
            return value
        if function in LOOKUPS and type(operands[0]) is contextvars.Context:
            self.context_variables.guard_lookup(*operands)
            return NOT_TAKEN
        method = IN_PLACE_METHODS.get(function)
        if method is not None and is_consumed(method, operands[1]) and self._is_outside_container(operands[0]):
            collected = self.machine.call(container_type(operands[1]), operands[1])
            return self.machine.operate(function, operands[0], collected)
        self._before_operation(function, operands)
        return NOT_TAKEN

    def _is_outside_container(self, value: object) -> bool:
        """Whether a value is a mutable built-in container from outside."""
        return self.outside.path_of(value) is not None and container_base(value) is not None

    def _before_lookup(self, function: Callable[..., Any], mapping: Any, key: object) -> None:
        """Guard the lookup of a key by C code, unless the item may be symbolic: `on_subscript` guards such an item."""
        self.outside.expand_key(key)
        if self.outside.guard_compared_keys(mapping):
            return
        may_be_symbolic = function is operator.getitem and self.outside.symbolic.may_have_symbols
        if not may_be_symbolic or (not is_symbolic(key) and not dict.__contains__(mapping, key)):
            self.outside.note_lookup(mapping, key)

    def _before_operation(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> None:
        """Guard the reads of a native operator, and log the write of an in-place operator to its first operand."""
        self.outside.effects.forget_pending_write()
        if function is operator.is_:
            require_known_identity(self, *operands)
            self.outside.guard_comparison(*operands)
            return
        if function is operator.contains and settle_lookup(self, *operands):
            return
        if function in KEY_LOOKUPS and is_plain_mapping(operands[0]):
            self._before_lookup(function, *operands)
            return
        if (
            function is operator.contains
            and is_plain_membership_test(*operands)
            and not compares_in_python(operands[0])
        ):
            self.outside.note_membership_test(*operands)
            return
        if function is operator.getitem and is_index_into(*operands):
            return  # `on_subscript` guards the item
        self.native_reads.note_operation(function, operands)
        self.native_calls.require_no_outside_iterator(function, operands)
        is_of_tensors = function not in (hash, operator.contains) and has_tensors(operands)
        self.outside.guard_compared_keys(*operands)
        self.outside.expand_for(function, operands, hashes=not is_of_tensors)
        if (method := IN_PLACE_METHODS.get(function)) is not None:
            self.native_calls.note_mutation(operands[0], method, operands[1:], {})
