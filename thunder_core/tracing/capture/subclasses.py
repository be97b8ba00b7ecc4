"""Subclasses of Tensor in a recording: the classes of results, according to PyTorch's `__torch_function__`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import get_default_nowrap_functions

from thunder_core.tracing.capture.fakes.tensors import Tensors
from thunder_core.tracing.capture.torch_facts.modes import FunctionMode
from thunder_core.tracing.library.changes.type_versions import ClassCaches, cached_by_version

ALIAS = torch.ops.aten.alias.default
DEFAULT = torch.Tensor.__torch_function__.__func__  # type: ignore[attr-defined]
DISABLED = torch._C._disabled_torch_function_impl
NEVER_CALLED = (DISABLED, torch.Tensor.__torch_function__)


class Subclasses:
    """The calls of torch functions on tensor subclasses.

    `record(function, args, kwargs)` runs a function on tensors of any class. `call_torch_function(method, *args)` calls
    a class's own `__torch_function__`.
    """

    def __init__(self, tensors: Tensors, record: Callable[..., Any], call_torch_function: Callable[..., Any]) -> None:
        self._tensors = tensors
        self._record = record
        self._call_torch_function = call_torch_function

    def run(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        kinds: Sequence[type],
    ) -> Any:
        """Run a function on tensors of these classes.

        A class's own `__torch_function__` is called in PyTorch's order.
        """
        kind = most_derived_class(kinds)
        if kind is None or not all(map(has_default_function, kinds)):
            return self._call_torch_functions(function, args, kwargs, kinds)
        return self.default(function, args, kwargs, kind)

    def _call_torch_functions(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], kinds: Sequence[type]
    ) -> Any:
        for kind in in_calling_order(kinds):
            method = kind.__torch_function__  # type: ignore[attr-defined]
            with FunctionMode(self._record):
                answer = self._call_torch_function(method, function, tuple(kinds), tuple(args), dict(kwargs))
            if answer is not NotImplemented:
                return answer
        return NotImplemented

    def default(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], kind: type) -> Any:
        """Run a function as `torch.Tensor.__torch_function__` does for a class."""
        output = self._record(function, args, kwargs)
        return output if function in get_default_nowrap_functions() else self.convert(output, kind)

    def convert(self, output: object, kind: type) -> Any:
        """Convert a result to a subclass, as `torch.Tensor.__torch_function__` does."""
        if isinstance(output, torch.Tensor) and not isinstance(output, kind):
            return self.cast(output, kind)
        if isinstance(output, tuple | list):
            return type(output)(self.convert(item, kind) for item in output)
        return output

    def cast(self, tensor: torch.Tensor, kind: type) -> torch.Tensor:
        """Return a tensor of another class with the same values and memory; the program's own tensor is not changed."""
        fake = self._tensors.fake(tensor)
        if self._tensors.is_shown(fake):
            fake = self._tensors.fake(self._record(ALIAS, (tensor,), {}))
        return fake if kind is torch.Tensor else self._tensors.handle(fake, kind)


def torch_function_classes(classes: tuple[type, ...]) -> tuple[type, ...]:
    """Return the classes whose `__torch_function__` PyTorch calls: not `torch.Tensor`, parameters and fakes."""
    return tuple([kind for kind in classes if _is_called(kind, "__torch_function__")])


def has_default_function(kind: type) -> bool:
    """Whether a class inherits the `__torch_function__` of `torch.Tensor`."""
    return bool(_is_default(kind, "__torch_function__"))


@cached_by_version(ClassCaches())
def _is_called(kind: type, name: str) -> tuple[bool, bool]:
    """Return whether a class has a `__torch_function__` that PyTorch calls, and True: the cache may keep the answer."""
    return getattr(kind, name, DISABLED) not in NEVER_CALLED, True


@cached_by_version(ClassCaches())
def _is_default(kind: type, name: str) -> tuple[bool, bool]:
    return getattr(getattr(kind, name), "__func__", None) is DEFAULT, True


def in_calling_order(kinds: Sequence[type]) -> list[type]:
    """Return the classes in PyTorch's calling order: from left to right, with a subclass before its bases."""
    order: list[type] = []
    for kind in kinds:
        index = next((index for index, base in enumerate(order) if issubclass(kind, base)), len(order))
        order.insert(index, kind)
    return order


def most_derived_class(kinds: Sequence[type]) -> type | None:
    """Return the class of results, which derives from all others, or None if there is none."""
    return next((kind for kind in kinds if all(issubclass(kind, base) for base in kinds)), None)
