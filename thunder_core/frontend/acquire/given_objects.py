"""Objects that a program creates and passes to a function at a line of the trace: they are equal at each call.

A trace holds the object itself. So the symbolic numbers in the object are replaced by their values, which are guarded.
An object that contains tensors computed by the program is refused.
"""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

import torch

from thunder_core.frontend.acquire.written.rebuilding import attributes_of
from thunder_core.frontend.interpreter.lookup import parts_of_partial
from thunder_core.tracing.capture.symbolic.numbers import SymbolicNumber
from thunder_core.tracing.ir.constants import BY_IDENTITY, is_constant
from thunder_core.tracing.ir.tree import like

PLAIN = (tuple, list, dict, slice, torch.Size)  # containers whose tensors and numbers are leaves of the arguments


class GivenObjects:
    """Settles the objects among the arguments of one call. `is_outside` is true for objects from before the program."""

    def __init__(
        self,
        is_outside: Callable[[Any], bool],
        is_computed: Callable[[torch.Tensor], bool],
        refuse: Callable[[str], NoReturn],
    ) -> None:
        self._is_outside = is_outside
        self._is_computed = is_computed
        self._refuse = refuse
        self._settled: dict[int, Any] = {}

    def settle_arguments(self, tree: object) -> None:
        """Settle the objects that are leaves of the arguments, and the attributes of their containers."""
        if isinstance(tree, torch.Tensor | SymbolicNumber):
            return
        if isinstance(tree, tuple | list | dict) and (type(tree) in PLAIN or not isinstance(tree, dict)):
            self._settle_attributes(tree)
            for item in tree.values() if isinstance(tree, dict) else tree:
                self.settle_arguments(item)
        elif type(tree) not in PLAIN:
            self._plain(tree, type(tree))

    def _plain(self, value: object, holder: type) -> Any:
        """Return the value without symbolic numbers.

        Built-in containers and objects are changed, tuples are rebuilt.
        """
        if isinstance(value, SymbolicNumber):
            return value.concretize()
        if isinstance(value, torch.Tensor):
            if self._is_computed(value):
                self._refuse(f"gets a {holder.__name__} that contains a tensor of the program")
            return value
        if is_constant(value) or self._is_outside(value) or id(value) in self._settled:
            return value
        self._settled[id(value)] = value
        if isinstance(value, types.FunctionType):
            self._settle_function(value)
        return value if isinstance(value, BY_IDENTITY) else self._settle_contents(value, holder)

    def _settle_function(self, function: types.FunctionType) -> None:
        """Settle the closure and the defaults of a function."""
        for cell in function.__closure__ or ():
            with suppress(ValueError):  # an empty cell
                cell.cell_contents = self._plain(cell.cell_contents, types.FunctionType)
        for name in ("__defaults__", "__kwdefaults__"):
            setattr(function, name, self._plain(getattr(function, name), types.FunctionType))

    def _settle_contents(self, value: object, holder: type) -> Any:
        if isinstance(value, tuple):
            return like(value, [self._plain(item, holder) for item in value])
        if isinstance(value, functools.partial | types.MethodType):
            parts = (value.__self__,) if isinstance(value, types.MethodType) else parts_of_partial(value)
            if any(part is not self._plain(part, holder) for part in parts):
                self._refuse(f"gets a {holder.__name__} that contains a number that changes from call to call")
            return value
        if isinstance(value, slice):
            return slice(*(self._plain(part, holder) for part in (value.start, value.stop, value.step)))
        if isinstance(value, dict):
            for key, item in list(dict.items(value)):
                dict.__setitem__(value, key, self._plain(item, holder))
        if isinstance(value, list | deque):
            base: Any = list if isinstance(value, list) else deque
            for index, item in enumerate(base.__iter__(value)):
                base.__setitem__(value, index, self._plain(item, holder))
        self._settle_attributes(value)
        return value

    def _settle_attributes(self, value: object) -> None:
        for name, item in attributes_of(value).items():
            plain = self._plain(item, type(value))
            if plain is not item:
                object.__setattr__(value, name, plain)
