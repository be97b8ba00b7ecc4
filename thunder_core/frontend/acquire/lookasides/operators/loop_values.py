"""The values of a loop's variables when the loop begins, and the conditions for recording the loop."""

from __future__ import annotations

import builtins
import functools
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from thunder_core.frontend.acquire.held_objects import HeldObjects, contents_of
from thunder_core.frontend.acquire.lookasides.operators.loop_bodies import LoopBody
from thunder_core.frontend.acquire.subtraces import Subtraces
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.frame import Frame
from thunder_core.frontend.interpreter.lookup import parts_of_partial
from thunder_core.tracing.capture.symbolic.numbers import SymbolicNumber
from thunder_core.tracing.capture.torch_facts.graph import memory_of
from thunder_core.tracing.capture.torch_facts.modes import without_our_functions

UNCHANGING = (SymbolicNumber, torch.Tensor, int, float, bool, str, type(None), torch.dtype, torch.device)
CONTAINERS = (dict, list, tuple)
BUILTINS = (len, float, int, bool, abs, min, max, isinstance, tuple, getattr, hasattr)
MODULES = ("torch", "math")
HEAP_TYPE = 1 << 9  # the flag of classes, most of which Python code has made
STACK, CAT = torch.stack, torch.cat
# Names in the code of called functions whose values differ between iterations, or whose use is a change.
HIDDEN_IN_CALLED = (
    *("requires_grad", "grad_fn", "is_leaf", "data_ptr", "retain_grad", "register_hook", "register_post_accumulate"),
    *("_version", "_base", "_is_view", "untyped_storage", "share_memory_", "backward", "set_data", "_backward_hooks"),
)
METADATA: dict[str, Callable[[torch.Tensor], Any]] = {
    "dtype": lambda tensor: tensor.dtype,
    "device": lambda tensor: tensor.device,
    "shape": lambda tensor: tuple(tensor.shape),
    "strides": lambda tensor: tuple(tensor.stride()),
}
HIDDEN_NAMES = frozenset({"id", "grad", "set_", "data", "storage", "locals", "vars", "globals", "eval", "exec", "warn"})


class Unsteady(Exception):  # callers handle it
    """A loop is not the same function in each iteration. The argument is the reason."""


def require_known(frame: Frame, body: LoopBody) -> None:
    """Raise `Unsteady` unless carried variables are tensors and all other variables do not change within the loop."""
    values = frame.bound_locals()
    for name in (*body.carried, *(name for name, _, _ in (*body.slices, *body.buffers))):
        if not isinstance(values.get(name), torch.Tensor):
            raise Unsteady(f"`{name}` is no tensor when the loop begins")
    for name in body.lists:
        if type(values.get(name)) is not list or values[name]:
            raise Unsteady(f"`{name}` is no empty list when the loop begins")
    for name in body.same:
        if name not in values or not is_steady(values[name]):
            raise Unsteady(f"`{name}` is {kind_of(values.get(name))}, which may change within the loop")
    for name in (*body.globals, *(("torch",) if body.lists else ()), *body.source.functions):
        value = frame.globals.get(name, getattr(builtins, name, None))
        if not is_steady(value):
            raise Unsteady(f"its body reads the global `{name}`, {kind_of(value)}")
    if (torch.stack, torch.cat) != (STACK, CAT):
        raise Unsteady("`torch.stack` or `torch.cat` was replaced")
    if any(
        getattr(builtins, name) is not frame.globals.get(name, getattr(builtins, name))
        for name in body.source.functions
    ):
        raise Unsteady("`reversed` or `enumerate` is not Python's own")


def kind_of(value: object) -> str:
    """Return a value's type in words."""
    return f"of type {type(value).__name__}"


def is_steady(value: Any, depth: int = 3) -> bool:
    """Whether a value changes between iterations only if the body changes it, which `Unchanged` detects."""
    if type(value) in CONTAINERS:
        items = (*value.keys(), *value.values()) if isinstance(value, dict) else value
        return depth > 0 and all(is_steady(item, depth - 1) for item in items)
    if isinstance(value, ModuleType):
        return value.__name__.split(".")[0] in MODULES
    if isinstance(value, MethodType | functools.partial):
        parts = (value.__self__,) if isinstance(value, MethodType) else parts_of_partial(value)
        return depth > 0 and all(is_steady(part, depth - 1) for part in parts)
    if isinstance(value, BuiltinFunctionType):
        return value in (*BUILTINS, enumerate, reversed) or is_module_function(value)
    return isinstance(value, (*UNCHANGING, FunctionType, torch.nn.Module)) or value in (*BUILTINS, enumerate, reversed)


def is_module_function(function: BuiltinFunctionType) -> bool:
    """Whether a builtin is a function of `torch` or `math`, and not a method of an object."""
    owner = function.__self__
    return owner is math or isinstance(owner, type) or (isinstance(owner, ModuleType) and owner.__name__[:5] == "torch")


class Unchanged:
    """A check that a call of a loop's body leaves objects of the program, generators and clocks as they are.

    `roots` refers to the objects, and `tensors` are the tensors among its variables. A function that the body calls
    could ask whether two of them are the same object, which may hold in the first iteration only.
    """

    def __init__(self, run: TracedRun, roots: object, tensors: Sequence[Any]) -> None:
        self._run = run
        self._has_equal = len({*map(id, tensors)}) < len(tensors)
        objects = HeldObjects(roots, lambda value: self._run.outside.path_of(value) is not None)
        for value in objects.objects:
            if not is_tracked(value):
                raise Unsteady(f"its body refers to an object {kind_of(value)}, whose state is unknown")
            if any(map(is_local_class, (type(value), *contents_of(value)))):
                raise Unsteady("its body refers to a class that the program has made")
        self._draws = len(self._run.draws.paths)

    def require(self, codes: Iterable[CodeType]) -> None:
        """Raise `Unsteady` if the body has drawn a number, or read values that differ between iterations."""
        if len(self._run.draws.paths) != self._draws:
            raise Unsteady("its body draws random numbers outside of PyTorch, or reads a clock")
        for code in codes:
            if self._run.code_origins.is_library(code):
                continue
            if self._has_equal:
                raise Unsteady("two of its variables are one tensor when the loop begins; copy it by `clone()`")
            hidden = [name for name in code.co_names if name.startswith(HIDDEN_IN_CALLED) or name in HIDDEN_NAMES]
            if hidden:
                raise Unsteady(f"`{code.co_qualname}`, which its body calls, uses `{hidden[0]}`")


def is_local_class(value: object) -> bool:
    """Whether a value is a class that no module contains, so that the program may have made it."""
    if not isinstance(value, type) or not value.__flags__ & HEAP_TYPE:
        return False
    owner: Any = sys.modules.get(value.__module__)
    for name in value.__qualname__.split("."):
        owner = getattr(owner, "__dict__", {}).get(name)
    return owner is not value


def is_tracked(value: object) -> bool:
    """Whether a change of an object shows in its contents."""
    if isinstance(value, BuiltinFunctionType):
        return is_steady(value)
    supported_types = (
        *UNCHANGING,
        *CONTAINERS,
        set,
        frozenset,
        FunctionType,
        MethodType,
        functools.partial,
        ModuleType,
        type,
    )
    if isinstance(value, (*supported_types, CellType, torch.nn.Module)):
        return True
    kind: Any = type(value)
    return kind.__new__ == object.__new__ and hasattr(value, "__dict__") and not hasattr(value, "__next__")


def require_same_metadata(
    fake: Callable[[Any], Any], body: LoopBody, before: Sequence[Any], after: Sequence[Any]
) -> None:
    """Raise `Unsteady` for a carried variable that an iteration gives another shape, dtype or layout."""
    for name, *pair in zip(body.carried, before, after, strict=True):
        if not isinstance(pair[1], torch.Tensor):
            raise Unsteady(f"its body assigns to `{name}` a value that is no tensor")
        old, new = map(fake, pair)
        with without_our_functions():  # these are no questions of the program
            facts = ((fact, of(old), of(new)) for fact, of in METADATA.items())
            changed = next(((fact, first, then) for fact, first, then in facts if first != then), None)
        if changed is not None:
            raise Unsteady("`{}` changes its {} from {} to {}".format(name, *changed))


def require_own_rows(subtraces: Subtraces, body: LoopBody, carried: Sequence[Any], rows: Sequence[Any]) -> None:
    """Raise `Unsteady` for appended tensors that share memory with a variable that later iterations write to."""
    written = {memory_of(subtraces.fake(carried[body.carried.index(name)])) for name in body.updated}
    if not all(isinstance(row, torch.Tensor) for row in rows):
        raise Unsteady("it appends a value that is no tensor")
    if not written.isdisjoint(memory_of(subtraces.fake(row)) for row in rows):
        raise Unsteady("it appends a tensor to which later iterations write in place")


def require_own_memory(subtraces: Subtraces, body: LoopBody, values: dict[str, Any], item: object) -> None:
    """Raise `Unsteady` if a tensor that the loop writes to shares memory with another tensor of the loop."""
    names_written = (*(name for name, _, _ in body.buffers), *body.updated)
    names = {*body.carried, *body.same, *(name for name, _, _ in body.slices)} - {*names_written}
    tensors = [leaf for leaf in tree_leaves(([values[name] for name in names], item)) if isinstance(leaf, torch.Tensor)]
    read = {memory_of(subtraces.fake(tensor)) for tensor in tensors}
    written = [memory_of(subtraces.fake(values[name])) for name in names_written]
    if len({*written}) < len(written) or not read.isdisjoint(written):
        raise Unsteady("it writes to memory that it reads by another variable")


def require_unwritten_operands(subtraces: Subtraces, body: LoopBody, values: dict[str, Any]) -> None:
    """Raise `Unsteady` if functions that the body calls read a tensor that the loop writes to."""
    names_written = (*(name for name, _, _ in body.buffers), *body.updated)
    written = {memory_of(subtraces.fake(values[name])) for name in names_written}
    operands = subtraces.recorder.bound_symbols[-1].args[-1]
    if not written.isdisjoint(subtraces.memories(proxy.name for proxy in operands)):
        raise Unsteady("a function that its body calls reads a tensor that the loop writes to")


def require_same_gradients(leaves: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> None:
    """Raise `Unsteady` if results of a loop require gradients, but not the results of its iterations."""
    if any(leaf.requires_grad != result.requires_grad for leaf, result in zip(leaves, results, strict=True)):
        raise Unsteady("its results require no gradients")
