"""A run: one interpretation of a program by an acquisition, with its arguments, its names and its process state."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.autograd import forward_ad

from thunder_core.frontend.acquire.lookasides.state.output import note_later_writes
from thunder_core.frontend.acquire.observer import Acquisition
from thunder_core.frontend.acquire.outside.guards import OfType
from thunder_core.frontend.acquire.outside.object_guards import Length
from thunder_core.frontend.acquire.outside.paths import Path
from thunder_core.frontend.acquire.outside.sharp import SharpEdge
from thunder_core.frontend.acquire.outside.symbolic import CONSTANT, Symbolic, is_parameter
from thunder_core.frontend.acquire.written.prologue import RESERVED
from thunder_core.frontend.acquire.written.variables import path_name
from thunder_core.tracing.capture.torch_facts.autocast import autocast_devices
from thunder_core.tracing.capture.torch_facts.settings import device_contexts
from thunder_core.tracing.ir.literal import unique_name
from thunder_core.tracing.ir.sizes import wider_places

STATE: tuple[tuple[str, Callable[[], object]], ...] = (
    ("torch.is_grad_enabled()", torch.is_grad_enabled),
    ("torch.is_inference_mode_enabled()", torch.is_inference_mode_enabled),
    ("torch.get_default_dtype()", torch.get_default_dtype),
    ("torch.are_deterministic_algorithms_enabled()", torch.are_deterministic_algorithms_enabled),
    ("torch._C._len_torch_function_stack()", torch._C._len_torch_function_stack),
    ("torch.autograd.forward_ad._current_level", lambda: forward_ad._current_level),
)


DEFAULT_DEVICE = "torch._C._get_function_stack_at({}).device"


def process_state(device: torch.device | None = None) -> dict[str, object]:
    """Return the process state that decides how operations compute: the queries and their current answers.

    A default device is a torch function mode. `device` is the device that the program will run on, if not on this
    machine.
    """
    devices = autocast_devices(elsewhere=device is not None)
    state: dict[str, object] = {query: ask() for query, ask in STATE}
    state |= {DEFAULT_DEVICE.format(index): context.device for index, context in device_contexts().items()}
    state |= {f'torch.is_autocast_enabled("{device}")': torch.is_autocast_enabled(device) for device in devices}
    active = [device for device in devices if torch.is_autocast_enabled(device)]
    return state | {f'torch.get_autocast_dtype("{device}")': torch.get_autocast_dtype(device) for device in active}


TUPLES = (tuple, torch.Size)


class Run(Acquisition):
    """An acquisition with its roots: the subject (a module or function), `args` and `kwargs`.

    If `device` is set, the subject's parameters and buffers and the arguments' tensors are assumed to be on it.
    """

    def __init__(
        self,
        subject: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        device: torch.device | None = None,
        evaluates: bool = False,
        symbolic: Symbolic = CONSTANT,
    ) -> None:
        named = subject.named_modules() if isinstance(subject, torch.nn.Module) else ()
        super().__init__({id(module): name for name, module in named}, evaluates, symbolic)
        self.subject, self.args, self.kwargs = subject, args, kwargs
        self.output: Any = None
        self.device = device
        self._moved = (
            {} if device is None else {id(tensor): tensor for tensor in tensors_to_move(subject, (args, kwargs))}
        )
        self.roots = [
            self.outside.root("root", "module" if isinstance(subject, torch.nn.Module) else "function", subject),
            self.outside.root("root", "args", args),
            self.outside.root("root", "kwargs", kwargs),
        ]
        self._taken = {*RESERVED, *(str(root.key) for root in self.roots)}
        if isinstance(subject, types.MethodType):
            self.outside.read(self.roots[0].attribute("__self__", subject.__self__), subject.__self__)
        for index, alias in enumerate(positional_names(subject)[: len(args)]):
            self.roots[1].item(index, args[index]).alias = alias
        self._symbolic_arguments: dict[Path, dict[Any, Path]] = {
            root: {key: path for key, value in items if self._holds_symbols(path := root.item(key, value))}
            for root, items in zip(self.roots[1:], (enumerate(args), kwargs.items()), strict=True)
        }
        self.outside.symbol_at = self._symbol_at
        for symbolic_paths, arguments in zip(self._symbolic_arguments.values(), (args, kwargs), strict=True):
            self.outside.expand(arguments, leaving=symbolic_paths)

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments as the program receives them, with symbolic numbers."""
        positions, names = (
            {key: self._with_symbols(path) for key, path in symbolic_paths.items()}
            for symbolic_paths in self._symbolic_arguments.values()
        )
        return tuple(positions.get(index, value) for index, value in enumerate(self.args)), {**self.kwargs, **names}

    def _holds_symbols(self, path: Path) -> bool:
        """Whether an argument is a symbolic number, or a tuple that contains a symbolic number."""
        value = path.value
        if type(value) in TUPLES:
            return any(self._holds_symbols(path.item(index, item)) for index, item in enumerate(value))
        return self.outside.is_symbolic(path, value)

    def _with_symbols(self, path: Path) -> Any:
        """Return an argument with its symbolic numbers replaced by symbols; the items of a tuple are read one by one.

        A number in the same tuple as a symbolic number is symbolic too, if no program was traced with a value for it.
        """
        value = path.value
        if type(value) not in TUPLES:
            return self.numbers.at(path)
        self.outside.guard(OfType(path, type(value)))
        self.outside.guard(Length(path, len(value)))
        items = [path.item(index, item) for index, item in enumerate(value)]
        symbolic = [self._holds_symbols(item) or self.outside.symbolic.is_new(item) for item in items]
        for item, holds in zip(items, symbolic, strict=True):
            if not holds:
                self.outside.read(item, item.value)
        items_with_symbols = (
            self._with_symbols(item) if holds else item.value for item, holds in zip(items, symbolic, strict=True)
        )
        return type(value)(items_with_symbols)

    def _symbol_at(self, path: Path) -> Any:
        """Return the symbols for the number, or the tuple of numbers, at a path; None if no number is symbolic."""
        return self._with_symbols(path) if self._holds_symbols(path) else None

    def symbolic_sizes(self, tensor: torch.Tensor) -> dict[int, Path]:
        """Return the paths to the symbolic sizes of a tensor, by dimension."""
        path = self.outside.path_of(tensor)
        if path is None or not self.outside.symbolic.may_be or is_parameter(path):
            return {}
        sizes = {dimension: path.child("size", dimension, size) for dimension, size in enumerate(tensor.shape)}
        return {dimension: size for dimension, size in sizes.items() if self.outside.symbolic.includes(size)}

    def symbolic_strides(self, tensor: torch.Tensor) -> dict[int, Path]:
        """Return the paths to the symbolic strides of a tensor with gaps, by dimension."""
        path = self.outside.path_of(tensor)
        if path is None or not self.outside.symbolic.may_be or is_parameter(path):
            return {}
        strides = tensor.stride()
        places = {place: path.child("stride", place, strides[place]) for place in wider_places(strides, tensor.shape)}
        return {place: stride for place, stride in places.items() if self.outside.symbolic.includes(stride)}

    def collect_edges(self) -> tuple[SharpEdge, ...]:
        """Return the sharp edges of the run."""
        surprises = self.outside.surprises.edges.values() if self.outside.surprises else ()
        for bsym in self.recorder.data_dependent.asking:
            description = f"`{bsym.symbol.name}` reads the value of a tensor; the program is specialized to this value"
            self.sharp_edges.setdefault(description, bsym.source)
        note_later_writes(self)
        edges = self.sharp_edges.items()
        return (*surprises, *(SharpEdge(text, where, text in self.loud_edges) for text, where in edges))

    def release(self) -> None:
        """Release all objects of the run: its parts refer to each other, and to the user's tensors.

        Without this call, the tensors would live until the garbage collector runs, which may be long after the call.
        """
        if hasattr(self, "machine"):
            self.machine.is_over = True
        self.functions.release()
        for path in (*self.roots, *self.outside.paths.values()):
            path.forget_children()
        if self.recorder.sizes is not None:
            self.recorder.sizes.leave_program()
        for part in (self.recorder.tensors, self.recorder, self.outside, self):
            vars(part).clear()

    def device_of(self, tensor: torch.Tensor) -> torch.device:
        """Return the program's device for a tensor with a path that would move to it; otherwise the tensor's device."""
        moves = id(tensor) in self._moved and self.outside.path_of(tensor) is not None
        return self.device if self.device is not None and moves else tensor.device

    def has_freed_graph(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor of the program has an autograd graph that a backward pass of the program has freed."""
        return self.recorder.gradients.has_freed_graph(tensor)

    def name_input(self, value: torch.Tensor | torch.Generator) -> str:
        """Name an input after its path. A tensor without a path is a constant of the trace."""
        path = self.outside.path_of(value)
        if self.outside.symbolic.probing and isinstance(value, torch.Tensor):
            self.symbolic_sizes(value)
        if path is None:
            description = f"a tensor of shape {list(value.shape)}" if isinstance(value, torch.Tensor) else "a generator"
            self.note_edge(f"{description} became a constant, because no path leads to it")
        return self._name("constant" if path is None else path_name(path))

    def name_number(self, path: Path) -> str:
        """Name a number from outside after its path."""
        return self._name(path_name(path))

    def _name(self, text: str) -> str:
        name = unique_name(text, self._taken)
        self._taken.add(name)
        return name


def tensors_to_move(subject: Callable[..., Any], arguments: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors that would be moved to the device of a program: those of the model and of its inputs."""
    if isinstance(subject, torch.nn.Module):
        yield from torch.nn.Module.parameters(subject)
        yield from torch.nn.Module.buffers(subject)
    yield from tensors_held(arguments, set())


def tensors_held(value: Any, visited: set[int]) -> Iterator[torch.Tensor]:
    """Yield the tensors in an argument, including containers and attributes of objects such as caches.

    `visited` are the identities of objects that were visited before.
    """
    if isinstance(value, torch.Tensor):
        yield value
    elif id(value) not in visited and not isinstance(value, torch.nn.Module | type | types.ModuleType):
        visited.add(id(value))
        for inner in items_held(value):
            yield from tensors_held(inner, visited)


def items_held(value: Any) -> Iterable[Any]:
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
