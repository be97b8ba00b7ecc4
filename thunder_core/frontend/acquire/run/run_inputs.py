"""The inputs of a run: the roots of its paths, the names of the trace's inputs, and symbolic numbers and sizes."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from thunder_core.frontend.acquire.codegen.prologue import RESERVED_NAMES
from thunder_core.frontend.acquire.codegen.variables import path_name
from thunder_core.frontend.acquire.numbers import OutsideNumbers
from thunder_core.frontend.acquire.outside.guards.containers import Length
from thunder_core.frontend.acquire.outside.guards.values import OfType
from thunder_core.frontend.acquire.outside.paths import Path
from thunder_core.frontend.acquire.outside.symbolic import is_parameter
from thunder_core.frontend.acquire.outside.whole_reads import WholeReads
from thunder_core.tracing.ir.literal import add_unique_name
from thunder_core.tracing.ir.sizes import dimensions_with_gaps

TUPLE_CLASSES = (tuple, torch.Size)


class RunInputs:
    """The inputs of a run: the subject (a module or function) with `args` and `kwargs`, and the names of trace inputs.

    If `device` is set, the program is traced as if the subject's parameters and buffers and the arguments' tensors were
    on this device. If `moves_from` is set too, this holds only for the tensors that are on the device `moves_from`.
    """

    def __init__(
        self,
        outside: WholeReads,
        subject: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        device: torch.device | None,
        moves_from: torch.device | None = None,
    ) -> None:
        self.subject, self.args, self.kwargs = subject, args, kwargs
        self._outside = outside
        self._device = device
        to_move = () if device is None else tensors_to_move(subject, (args, kwargs))
        self._moved = {id(tensor): tensor for tensor in to_move if moves_from in (None, tensor.device)}
        self.roots = [
            outside.root("root", "module" if isinstance(subject, torch.nn.Module) else "function", subject),
            outside.root("root", "args", args),
            outside.root("root", "kwargs", kwargs),
        ]
        self._used_names = {*RESERVED_NAMES, *(str(root.key) for root in self.roots)}
        for index, alias in enumerate(positional_names(subject)[: len(args)]):
            self.roots[1].item(index, args[index]).alias = alias
        self._symbolic_arguments: dict[Path, dict[Any, Path]] = {
            root: {key: path for key, value in items if self._has_symbols(path := root.item(key, value))}
            for root, items in zip(self.roots[1:], (enumerate(args), kwargs.items()), strict=True)
        }

    def guard(self) -> None:
        """Guard the subject (the class of a module, or the parts of another callable) and the arguments.

        Arguments that are symbolic numbers, or contain them, are not guarded here.
        """
        if isinstance(self.subject, torch.nn.Module):
            self._outside.guard(OfType(self.roots[0], type(self.subject)))
        else:
            self._outside.read_parts(self.roots[0], self.subject)
        for symbolic_paths, arguments in zip(self._symbolic_arguments.values(), (self.args, self.kwargs), strict=True):
            self._outside.expand(arguments, excluded_keys=symbolic_paths)

    def arguments(self, numbers: OutsideNumbers) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments as the program receives them, with symbolic numbers."""
        positions, names = (
            {key: self._with_symbols(path, numbers) for key, path in symbolic_paths.items()}
            for symbolic_paths in self._symbolic_arguments.values()
        )
        return tuple(positions.get(index, value) for index, value in enumerate(self.args)), {**self.kwargs, **names}

    def symbol_at(self, path: Path, numbers: OutsideNumbers) -> Any:
        """Return the symbols for the number, or the tuple of numbers, at a path; None if no number is symbolic."""
        return self._with_symbols(path, numbers) if self._has_symbols(path) else None

    def _has_symbols(self, path: Path) -> bool:
        """Whether the value at a path is a symbolic number, or a tuple that contains a symbolic number."""
        value = path.value
        if type(value) in TUPLE_CLASSES:
            return any(self._has_symbols(path.item(index, item)) for index, item in enumerate(value))
        return self._outside.is_symbolic(path, value)

    def _with_symbols(self, path: Path, numbers: OutsideNumbers) -> Any:
        """Return the symbol for a symbolic number, or a tuple with symbols for its symbolic numbers.

        A number of the tuple that no earlier program was traced with is symbolic, too. The other items are guarded.
        """
        value = path.value
        if type(value) not in TUPLE_CLASSES:
            return numbers.at(path)
        self._outside.guard(OfType(path, type(value)))
        self._outside.guard(Length(path, len(value)))
        items = [path.item(index, item) for index, item in enumerate(value)]
        get_symbols = [self._has_symbols(item) or self._outside.symbolic.is_new(item) for item in items]
        for item, gets_symbols in zip(items, get_symbols, strict=True):
            if not gets_symbols:
                self._outside.read(item, item.value)
        items_with_symbols = (
            self._with_symbols(item, numbers) if gets_symbols else item.value
            for item, gets_symbols in zip(items, get_symbols, strict=True)
        )
        return type(value)(items_with_symbols)

    def symbolic_sizes(self, tensor: torch.Tensor) -> dict[int, Path]:
        """Return the paths to the symbolic sizes of a tensor, by dimension."""
        path = self._outside.path_of(tensor)
        if path is None or not self._outside.symbolic.may_have_symbols or is_parameter(path):
            return {}
        sizes = {dimension: path.child("size", dimension, size) for dimension, size in enumerate(tensor.shape)}
        return {dimension: size for dimension, size in sizes.items() if self._outside.symbolic.includes(size)}

    def symbolic_strides(self, tensor: torch.Tensor) -> dict[int, Path]:
        """Return the paths to the symbolic strides of a tensor with gaps, by dimension."""
        path = self._outside.path_of(tensor)
        if path is None or not self._outside.symbolic.may_have_symbols or is_parameter(path):
            return {}
        strides = tensor.stride()
        gaps = dimensions_with_gaps(strides, tensor.shape)
        paths = {dimension: path.child("stride", dimension, strides[dimension]) for dimension in gaps}
        return {dimension: stride for dimension, stride in paths.items() if self._outside.symbolic.includes(stride)}

    def device_of(self, tensor: torch.Tensor) -> torch.device:
        """Return the device that the trace assumes for a tensor: the program's device if the tensor moves there.

        A tensor without a path is a constant of the trace, and does not move.
        """
        moves = id(tensor) in self._moved and self._outside.path_of(tensor) is not None
        return self._device if self._device is not None and moves else tensor.device

    def name_tensor(self, value: torch.Tensor | torch.Generator) -> str:
        """Name a tensor or generator after its path; a value without a path is a constant of the trace."""
        path = self._outside.path_of(value)
        return self.unused_name("constant" if path is None else path_name(path))

    def name_number(self, path: Path) -> str:
        """Name a number from outside after its path."""
        return self.unused_name(path_name(path))

    def unused_name(self, text: str) -> str:
        """Return a name that resembles the text and that no input and no sub-trace has."""
        return add_unique_name(text, self._used_names)


def tensors_to_move(subject: Callable[..., Any], arguments: object) -> Iterator[torch.Tensor]:
    """Yield the tensors that move to the device of a program: parameters, buffers, and the tensors in the arguments."""
    if isinstance(subject, torch.nn.Module):
        yield from torch.nn.Module.parameters(subject)
        yield from torch.nn.Module.buffers(subject)
    yield from tensors_in(arguments, set())


def tensors_in(value: object, visited: set[int]) -> Iterator[torch.Tensor]:
    """Yield the tensors in the items of a container or the attributes of another object, such as a KV cache.

    The search includes inner containers and objects, but no modules and classes. `visited` has the identities of the
    visited objects.
    """
    if isinstance(value, torch.Tensor):
        yield value
    elif id(value) not in visited and not isinstance(value, torch.nn.Module | type | types.ModuleType):
        visited.add(id(value))
        for inner in children_of(value):
            yield from tensors_in(inner, visited)


def children_of(value: object) -> Iterable[Any]:
    """Return the items of a container, or the attributes of an object."""
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple | set) else getattr(value, "__dict__", {}).values()


def positional_names(subject: Callable[..., Any]) -> list[str]:
    """Return the names of the parameters that can be passed by position, to name inputs after them."""
    target = subject.forward if isinstance(subject, torch.nn.Module) else subject
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
