"""The observer's handling of writes to attributes, items, globals and closures: the epilogue replays them."""

# ruff: noqa: ARG002 (each event has the arguments of the protocol)

from __future__ import annotations

from typing import Any, NoReturn

import torch

from thunder_core.foundation.descriptions import object_of_class
from thunder_core.foundation.errors import CannotReplay, SourceLine
from thunder_core.frontend.acquire.outside.call_traits import is_plain_mapping
from thunder_core.frontend.acquire.outside.containers import container_base, iterates_in_python, overridden_c_class
from thunder_core.frontend.acquire.outside.native_calls import NativeCalls
from thunder_core.frontend.acquire.outside.outside_writes import OutsideWrites
from thunder_core.frontend.acquire.outside.whole_reads import WholeReads
from thunder_core.frontend.acquire.run.complex_parts import is_part, is_value_of_part, write_part
from thunder_core.frontend.interpreter import Observer
from thunder_core.frontend.interpreter.frame import Frame
from thunder_core.frontend.interpreter.observer import WRITTEN
from thunder_core.tracing.capture.location import Location

# The attributes that decide where Python finds the other attributes of an object.
LAYOUT = frozenset({"__bases__", "__class__", "__dict__"})


class ObservedWrites(Observer):
    """An observer that logs writes of the program to outside objects."""

    outside: WholeReads
    writes: OutsideWrites
    native_calls: NativeCalls

    def location(self) -> Location:
        """Return the program's position."""
        raise NotImplementedError

    def leave_to_eager(self, what: str, fix: str, where: SourceLine | None = None) -> NoReturn:
        """Raise the request that eager PyTorch makes this call."""
        raise NotImplementedError

    def on_store_attr(self, owner: object, name: str, value: object) -> Any:
        """Log a write to an attribute of an outside object. Writes to a tensor's values are recorded, not logged."""
        self.outside.effects.forget_pending_write()
        if issubclass(type(owner), torch.Tensor):
            if name == "data":
                return value
            if is_part(type(owner), name) and is_value_of_part(value):
                write_part(self.machine, owner, name, value)
                return WRITTEN
        self.writes.note_attribute_set(owner, name, value, overridden_c_class(type(owner), "__setattr__"))
        if name in LAYOUT:
            self._note_replaced_layout(owner, name, value)
        return value

    def on_delete_attr(self, owner: object, name: str) -> None:
        """Log the deletion of an attribute of an outside object."""
        self.outside.effects.forget_pending_write()
        self.writes.note_attribute_deletion(owner, name, overridden_c_class(type(owner), "__delattr__"))
        if name in LAYOUT:
            self._note_replaced_layout(owner, name, None)

    def _note_replaced_layout(self, owner: object, name: str, value: object) -> None:
        """Forbid later uses of an outside object whose class or dict of attributes the program replaces.

        A path to an attribute leads to the attribute of the earlier class or dict.

        Request that eager PyTorch makes the call if the program replaces the bases of a class, or lets its own object
        store its attributes in a dict from outside, because no path leads to later reads of the attributes.
        """
        if name == "__class__" and value is type(owner):
            return
        if name == "__bases__":
            if not issubclass(type(owner), type):
                return  # an attribute of this name decides nothing for other objects
            self.leave_to_eager("the program sets the bases of a class", "set them outside the compiled program")
        if self.outside.path_of(owner) is not None:
            self.outside.forbid_use(owner, replaced_layout_error(owner, name, self.location().source))
        elif self.outside.path_of(value) is not None and name == "__dict__":
            self.leave_to_eager(
                "the program sets the `__dict__` of an object that it creates to a dict from outside",
                "update the `__dict__` of the object, or read the items of the dict",
            )

    def on_store_subscript(self, container: object, key: object, value: object) -> Any:
        """Log a write to an item."""
        self.outside.effects.forget_pending_write()
        if type(key) is slice and iterates_in_python(value):
            value = self.machine.call(list, value)
        if container_base(container) is None or type(key) is slice:  # C code reads the key and the value
            for operand in (key, value):
                self.outside.expand_whole(operand)
        elif is_plain_mapping(container):
            self.outside.expand_key(key)
            self.outside.guard_compared_keys(container)
        self.native_calls.note_mutation(container, "__setitem__", (key, value), {})
        return value

    def on_delete_subscript(self, container: object, key: object) -> None:
        """Log the deletion of an item."""
        self.outside.effects.forget_pending_write()
        self.outside.guard_compared_keys(container)
        self.native_calls.note_mutation(container, "__delitem__", (key,), {})

    def on_store_global(self, frame: Frame, name: str, value: object) -> Any:
        """Log a write to a global."""
        self.writes.note_global_set(frame.globals, name, value)
        return value

    def on_delete_global(self, frame: Frame, name: str) -> None:
        """Log the deletion of a global."""
        self.outside.effects.forget_pending_write()
        self.writes.note_global_deletion(frame.globals, name)

    def on_store_deref(self, frame: Frame, name: str, cell: object, value: object) -> Any:
        """Log a write to a closure variable of an outside function."""
        self.writes.note_attribute_set(cell, "cell_contents", value)
        return value

    def on_delete_deref(self, frame: Frame, name: str, cell: object) -> None:
        """Log the deletion of a closure variable of an outside function."""
        self.writes.note_attribute_deletion(cell, "cell_contents")

    def count_effects(self) -> object:
        """Return the number of writes to outside objects, and the number of logged effects, which include prints."""
        return self.outside.effects.write_count, len(self.outside.effects.effects)

    def on_nested_effects(self, owner: object) -> None:
        """Request that eager PyTorch makes the call: the epilogue would make the effects twice."""
        if self.outside.path_of(owner) is not None:
            self.leave_to_eager(
                f"a write to {self.outside.path_of(owner)} calls a function that also has effects outside the program",
                "make these effects outside of this function",
            )

    def on_hook_effects(self, function: Any) -> None:
        """Request that eager PyTorch makes the call, without guards: the guards would call the function again."""
        self.outside.guards.clear()
        self.leave_to_eager(
            f"`{function.__qualname__}`, which a lookup calls, has effects outside the program",
            "make these effects outside of this function",
        )

    def on_unwritten(self, owner: object) -> None:
        """Remove the effect of the last logged write, if the write to this object has raised."""
        pending_write = self.outside.effects.pending_write
        if pending_write is not None and pending_write.owner is owner:
            self.writes.note_failed_write(pending_write)


def replaced_layout_error(owner: object, name: str, where: SourceLine | None) -> CannotReplay:
    """Return the error for a use of an object from outside after the program has replaced its class or dict."""
    return CannotReplay(
        f"the program replaces the `{name}` of {object_of_class(type(owner))} from outside, and uses the object "
        "afterwards",
        fix=f"set `{name}` outside the compiled program, or set the attributes one by one",
        where=where,
    )
