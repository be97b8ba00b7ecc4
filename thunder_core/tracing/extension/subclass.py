"""Create subclasses of a module's class, without calls of the user's metaclass or `__init_subclass__`."""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import MemberDescriptorType
from typing import Any

import torch


class _Shield(torch.nn.Module):
    """A temporary first base class, whose `__init_subclass__` is called instead of those of the other base classes."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        """Do nothing."""


def subclass_of(kind: type, members: Mapping[str, Any]) -> Any:
    """Return a subclass with the names, the docstring and the metaclass of `kind`, and these members.

    `__new__`, `__init__` and `__setattr__` of the metaclass, and `__init_subclass__` of the bases, are not called: they
    may register each class, refuse further classes, or require arguments. A metaclass's `mro` is called.
    """
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    namespace = {**names, **members}
    metaclass: Any = type(kind)
    create: Any = ABCMeta.__new__ if issubclass(metaclass, ABCMeta) else type.__new__
    if not any("__init_subclass__" in vars(base) for base in kind.__mro__ if base is not object):
        return create(metaclass, kind.__name__, (kind,), namespace)
    subclass: Any = create(metaclass, kind.__name__, (_Shield, kind), namespace)
    with suppress(TypeError):  # the shield stays if Python refuses the assignment because of the layout of the classes
        type.__setattr__(subclass, "__bases__", (kind,))
    return subclass


@dataclass(frozen=True)
class SharedSlot:
    """A slot (`__slots__`) of a module, which a compiled module with the same state shares."""

    slot: MemberDescriptorType
    subject: torch.nn.Module

    def __get__(self, module: torch.nn.Module | None, kind: type | None = None) -> Any:
        """Return the value of the slot, or the slot itself if it is read from a class."""
        return self.slot if module is None else self.slot.__get__(self._holder(module), kind)

    def __set__(self, module: torch.nn.Module, value: Any) -> None:
        """Set the value of the slot."""
        self.slot.__set__(self._holder(module), value)

    def __delete__(self, module: torch.nn.Module) -> None:
        """Delete the value of the slot."""
        self.slot.__delete__(self._holder(module))

    def _holder(self, module: torch.nn.Module) -> torch.nn.Module:
        return self.subject if module.__dict__ is self.subject.__dict__ else module


def slot_names(kind: type) -> frozenset[str]:
    """Return the names of the slots of a class and of its base classes."""
    slots = MemberDescriptorType | SharedSlot
    return frozenset(name for base in kind.__mro__ for name, value in vars(base).items() if isinstance(value, slots))


def shared_slots(subject: torch.nn.Module) -> dict[str, SharedSlot]:
    """Return a `SharedSlot` for each slot of the module's class and its bases, by name.

    They are attributes of the class of a compiled module that shares the module's state.
    """
    entries = {name: entry for base in reversed(type(subject).__mro__) for name, entry in vars(base).items()}
    return {
        name: SharedSlot(entry, subject) for name, entry in entries.items() if isinstance(entry, MemberDescriptorType)
    }
