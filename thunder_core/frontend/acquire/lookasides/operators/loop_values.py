"""Conditions for recording a loop: the values of its variables when the loop begins, and the effects of its body."""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable, Iterable, Sequence
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from thunder_core.frontend.acquire.held_objects import HeldObjects, contents_of, is_local_class
from thunder_core.frontend.acquire.lookasides.operators.loop_bodies import LoopBody
from thunder_core.frontend.acquire.subtraces import Subtraces
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.frame import Frame
from thunder_core.frontend.interpreter.lookup import parts_of_partial
from thunder_core.tracing.capture.symbolic.numbers import SymbolicNumber
from thunder_core.tracing.capture.torch_facts.graph import memory_of
from thunder_core.tracing.capture.torch_facts.modes import without_our_functions

# Types whose instances do not change between iterations, or change only by writes to tensors, which Thunder records.
INVARIANT_TYPES = (SymbolicNumber, torch.Tensor, int, float, bool, str, type(None), torch.dtype, torch.device)
CONTAINER_TYPES = (dict, list, tuple)
# Builtins whose results depend only on their arguments.
ALLOWED_BUILTINS = (len, float, int, bool, abs, min, max, isinstance, tuple, enumerate, reversed)
ALLOWED_MODULES = ("torch", "math")
ORIGINAL_STACK, ORIGINAL_CAT = torch.stack, torch.cat
# Beginnings of names that called functions must not use: their values differ between iterations, or they change state.
FORBIDDEN_NAME_PREFIXES = (
    *("requires_grad", "grad_fn", "is_leaf", "data_ptr", "retain_grad", "register_hook", "register_post_accumulate"),
    *("_version", "_base", "_is_view", "untyped_storage", "share_memory_", "backward", "set_data", "_backward_hooks"),
)
# More such names, which are forbidden as whole words only.
FORBIDDEN_NAMES = frozenset(
    {
        *("id", "grad", "set_", "data", "storage", "locals", "vars", "globals", "eval", "exec", "warn"),
        *("getattr", "hasattr", "attrgetter", "__getattribute__", "__getattr__"),  # they read attributes by any name
    }
)
METADATA_READERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "dtype": lambda tensor: tensor.dtype,
    "device": lambda tensor: tensor.device,
    "shape": lambda tensor: tuple(tensor.shape),
    "strides": lambda tensor: tuple(tensor.stride()),
}


class LoopNotRecordable(Exception):  # callers handle it
    """A loop cannot be recorded, because its iterations may do different things. The argument is the reason."""


def require_recordable_variables(frame: Frame, body: LoopBody) -> None:
    """Raise `LoopNotRecordable` if a variable or a global has a value with which a recorded loop cannot begin.

    Carried variables, sliced tensors and buffers must be tensors, and lists must be empty. Invariants and globals must
    not change within the loop. `torch.stack`, `torch.cat`, `reversed` and `enumerate` must be the original functions.
    """
    values = frame.bound_locals()
    for name in (*body.carried, *(name for name, _, _ in (*body.slices, *body.buffers))):
        if not isinstance(values.get(name), torch.Tensor):
            raise LoopNotRecordable(f"`{name}` is not a tensor when the loop begins")
    for name in body.lists:
        if type(values.get(name)) is not list or values[name]:
            raise LoopNotRecordable(f"`{name}` is not an empty list when the loop begins")
    for name in body.invariants:
        if name not in values:
            raise LoopNotRecordable(f"`{name}` has no value when the loop begins")
        if not is_loop_invariant(values[name]):
            raise LoopNotRecordable(f"`{name}` is {type_in_words(values[name])}, so it may change within the loop")
    for name in (*body.global_names, *(("torch",) if body.lists else ()), *body.source.functions):
        value = frame.globals.get(name, getattr(builtins, name, None))
        if not is_loop_invariant(value):
            raise LoopNotRecordable(f"the global `{name}` is {type_in_words(value)}, so it may change within the loop")
    if (torch.stack, torch.cat) != (ORIGINAL_STACK, ORIGINAL_CAT):
        raise LoopNotRecordable("`torch.stack` or `torch.cat` was replaced")
    if any(
        getattr(builtins, name) is not frame.globals.get(name, getattr(builtins, name))
        for name in body.source.functions
    ):
        raise LoopNotRecordable("`reversed` or `enumerate` is not Python's own")


def type_in_words(value: object) -> str:
    """Return the words for a value's type, as in "of type list"."""
    return f"of type {type(value).__name__}"


def is_loop_invariant(value: Any, depth: int = 3) -> bool:
    """Whether a value is the same in all iterations, unless the body itself changes the value.

    `Subtraces.record` detects such changes. `depth` limits how deeply containers may be nested.
    """
    if type(value) in CONTAINER_TYPES:
        items = (*value.keys(), *value.values()) if isinstance(value, dict) else value
        return depth > 0 and all(is_loop_invariant(item, depth - 1) for item in items)
    if isinstance(value, ModuleType):
        return value.__name__.split(".")[0] in ALLOWED_MODULES
    if isinstance(value, MethodType | functools.partial):
        parts = (value.__self__,) if isinstance(value, MethodType) else parts_of_partial(value)
        return depth > 0 and all(is_loop_invariant(part, depth - 1) for part in parts)
    if isinstance(value, BuiltinFunctionType):
        return is_allowed_builtin(value) or is_module_function(value)
    if isinstance(value, (*INVARIANT_TYPES, FunctionType, torch.nn.Module)):
        return True
    return is_allowed_builtin(value)


def is_allowed_builtin(value: object) -> bool:
    """Whether a value is one of `ALLOWED_BUILTINS`. Values are compared by identity, so no `__eq__` is called."""
    return any(value is builtin for builtin in ALLOWED_BUILTINS)


def is_module_function(function: BuiltinFunctionType) -> bool:
    """Whether a builtin is a function of `torch` or `math`, or a method of a class that is not bound to an instance."""
    owner = function.__self__
    if isinstance(owner, ModuleType):
        return owner.__name__.split(".")[0] in ALLOWED_MODULES
    return isinstance(owner, type)


class UnchangedStateCheck:
    """A check that a loop's body depends on no state that may differ between iterations.

    Create the check before the body is interpreted, and call `require` afterwards. `root` refers to all objects that
    the body reads. `tensors` are the tensors among the body's variables. If two of them are the same object, a called
    function may compare them with `is`, and the result may differ in later iterations.

    Raises `LoopNotRecordable` for an object whose changes cannot be detected.
    """

    def __init__(self, run: TracedRun, root: object, tensors: Sequence[Any]) -> None:
        self._run = run
        self._has_identical = len({*map(id, tensors)}) < len(tensors)
        held_objects = HeldObjects(root, lambda value: self._run.outside.path_of(value) is not None)
        for value in held_objects.objects:
            if not has_detectable_changes(value):
                raise LoopNotRecordable(f"its body refers to an object {type_in_words(value)}, whose state is unknown")
            if any(map(is_local_class, (type(value), *contents_of(value)))):
                raise LoopNotRecordable("its body refers to a class that the program created")
        self._draw_count = len(self._run.draws.paths)

    def require(self, codes: Iterable[CodeType]) -> None:
        """Raise `LoopNotRecordable` if the body drew numbers outside of PyTorch, or may have read changing state.

        `codes` are the code objects of the functions that the body called.
        """
        if len(self._run.draws.paths) != self._draw_count:
            raise LoopNotRecordable("its body draws random numbers outside of PyTorch, or reads a clock")
        for code in codes:
            if self._run.code_origins.is_library(code):
                continue
            if self._has_identical:
                raise LoopNotRecordable(
                    "two of its variables are one tensor when the loop begins; copy it by `clone()`"
                )
            forbidden = [
                name for name in code.co_names if name.startswith(FORBIDDEN_NAME_PREFIXES) or name in FORBIDDEN_NAMES
            ]
            if forbidden:
                raise LoopNotRecordable(f"`{code.co_qualname}`, which its body calls, uses `{forbidden[0]}`")


def has_detectable_changes(value: object) -> bool:
    """Whether Thunder detects each change of an object, because the object's contents are known."""
    if isinstance(value, BuiltinFunctionType):
        return is_loop_invariant(value)
    supported_types = (
        *INVARIANT_TYPES,
        *CONTAINER_TYPES,
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
    """Raise `LoopNotRecordable` if an iteration changes the shape, dtype, device or strides of a carried tensor."""
    for name, *pair in zip(body.carried, before, after, strict=True):
        if not isinstance(pair[1], torch.Tensor):
            raise LoopNotRecordable(f"its body assigns to `{name}` a value that is not a tensor")
        old, new = map(fake, pair)
        with without_our_functions():  # Thunder, not the program, reads this metadata
            metadata = ((kind, read(old), read(new)) for kind, read in METADATA_READERS.items())
            changed = next((difference for difference in metadata if difference[1] != difference[2]), None)
        if changed is not None:
            raise LoopNotRecordable("`{}` changes its {} from {} to {}".format(name, *changed))


def require_unshared_rows(subtraces: Subtraces, body: LoopBody, carried: Sequence[Any], rows: Sequence[Any]) -> None:
    """Raise `LoopNotRecordable` for a row that is no tensor, or that later iterations write to.

    The latter is a row that shares memory with a carried tensor that is updated in place.
    """
    written = {memory_of(subtraces.fake(carried[body.carried.index(name)])) for name in body.updated_in_place}
    if not all(isinstance(row, torch.Tensor) for row in rows):
        raise LoopNotRecordable("it appends a value that is not a tensor")
    if not written.isdisjoint(memory_of(subtraces.fake(row)) for row in rows):
        raise LoopNotRecordable("it appends a tensor to which later iterations write in place")


def require_unshared_memory(subtraces: Subtraces, body: LoopBody, values: dict[str, Any], item: object) -> None:
    """Raise `LoopNotRecordable` if a tensor that the loop writes to shares memory with another tensor of the loop.

    `values` are the local variables, and `item` has the tensor of a loop over `unbind`.
    """
    names_written = (*(name for name, _, _ in body.buffers), *body.updated_in_place)
    names = {*body.carried, *body.invariants, *(name for name, _, _ in body.slices)} - {*names_written}
    tensors = [leaf for leaf in tree_leaves(([values[name] for name in names], item)) if isinstance(leaf, torch.Tensor)]
    read = {memory_of(subtraces.fake(tensor)) for tensor in tensors}
    written = [memory_of(subtraces.fake(values[name])) for name in names_written]
    if len({*written}) < len(written) or not read.isdisjoint(written):
        raise LoopNotRecordable("two of its variables share memory, and it writes to one of them")


def require_operands_not_written(subtraces: Subtraces, body: LoopBody, values: dict[str, Any]) -> None:
    """Raise `LoopNotRecordable` if the recorded loop has an operand that the loop writes to.

    The operands, the last argument of the loop's bound symbol, are the outside tensors that an iteration reads.
    """
    names_written = (*(name for name, _, _ in body.buffers), *body.updated_in_place)
    written = {memory_of(subtraces.fake(values[name])) for name in names_written}
    operands = subtraces.recorder.bound_symbols[-1].args[-1]
    if not written.isdisjoint(subtraces.memories(proxy.name for proxy in operands)):
        raise LoopNotRecordable(
            "an iteration reads a tensor that the loop writes to, through a global or a called function"
        )


def require_consistent_gradients(
    iteration_results: Sequence[torch.Tensor], loop_results: Sequence[torch.Tensor]
) -> None:
    """Raise `LoopNotRecordable` unless the loop's results require gradients exactly as those of one iteration do."""
    pairs = zip(iteration_results, loop_results, strict=True)
    if any(once.requires_grad != result.requires_grad for once, result in pairs):
        raise LoopNotRecordable("whether a result requires a gradient differs between one iteration and the loop")
