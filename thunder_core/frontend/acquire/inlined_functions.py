"""A `torch.autograd.Function` whose forward is inlined into the program.

A forward is inlined if it writes to outside objects, draws random numbers outside of PyTorch, or reads objects that the
program has written to. The forward is then interpreted with autograd off, as a part of the program. One bound symbol
connects its results with the user's backward, which autograd runs after the program.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from types import CellType, FrameType, FunctionType, TracebackType
from typing import Any, NoReturn

import torch

from thunder_core.foundation.descriptions import object_of_class
from thunder_core.frontend.acquire.given_objects import SHALLOWLY_IMMUTABLE, ObjectSnapshot
from thunder_core.frontend.acquire.held_objects import HeldObjects, refers_to_tensors
from thunder_core.frontend.acquire.outside.recording import Recording
from thunder_core.passes.autodiff.applied.connected import (
    CONSTANT,
    ITSELF,
    VIEW,
    ForwardResults,
    connecting_operation,
)
from thunder_core.passes.autodiff.applied.object_copies import Snapshot
from thunder_core.tracing.capture.symbolic.numbers import SymbolicNumber
from thunder_core.tracing.capture.torch_facts.modes import without_functions
from thunder_core.tracing.ir.constants import BY_IDENTITY, is_constant
from thunder_core.tracing.library.applied_functions import ForwardContext, inlined_forward

NOT_SEARCHED = (*BY_IDENTITY, torch.nn.Module, SymbolicNumber, FrameType, TracebackType)
WRONG_MARK_DIRTY = "marks a tensor as dirty that is not both an input and a result with a gradient"


class KeptContainers:
    """Objects of a program, such as lists and dicts, that functions keep for their backwards. The backwards get copies.

    A copy is correct if the program does not change the original later, and if no other object refers to the original.
    """

    def __init__(self, is_outside: Callable[[Any], bool]) -> None:
        self._is_outside = is_outside
        self._kept: list[tuple[Any, HeldObjects, Callable[[str], NoReturn], bool]] = []

    def includes(self, value: object) -> bool:
        """Whether a function keeps this object, and the object may change."""
        return not isinstance(value, SHALLOWLY_IMMUTABLE) and any(value is kept for kept, *_ in self._kept)

    def add(self, value: object, refuse: Callable[[str], NoReturn], *, may_be_shared: bool = False) -> None:
        """Add an object. If `may_be_shared` is set, the object may still be reachable after the program."""
        self._kept.append((value, HeldObjects(value, self._is_outside), refuse, may_be_shared))

    def require_unshared(self, reachable: object) -> None:
        """Refuse an object that has changed since it was added, or that is reachable and may not be shared."""
        reachable_ids = {id(value) for value in values_in(reachable, set())} if self._kept else set()
        for value, held_objects, refuse, may_be_shared in self._kept:
            if held_objects.have_changed() or (id(value) in reachable_ids and not may_be_shared):
                refuse(
                    f"keeps {object_of_class(type(value))} that the program creates for its backward, and "
                    "that is used later"
                )


class InlinedFunction:
    """One application of a function whose forward is inlined into the program; `refuse(reason)` raises the error.

    `containers` are the objects of the program that functions keep for their backwards.
    """

    def __init__(
        self,
        run: Recording,
        kind: type[torch.autograd.Function],
        args: tuple[Any, ...],
        containers: KeptContainers,
        refuse: Callable[[str], NoReturn],
    ) -> None:
        self._run = run
        self._kind = kind
        self._args = args
        self._kept = containers
        self._refuse = refuse

    def apply(self) -> Any:
        """Interpret the forward as a part of the program, and return its output, connected with the backward."""
        has_setup = self._kind.setup_context is not torch.autograd.Function.setup_context
        context = ForwardContext(tuple(map(self._requires_grad, self._args)))
        output = self._run.machine.call(inlined_forward, self._kind, has_setup, context, self._args)
        outputs = self._connect(output if isinstance(output, tuple) else (output,), context)
        return tuple(outputs) if isinstance(output, tuple) else outputs[0]

    def _connect(self, outputs: tuple[Any, ...], context: ForwardContext) -> list[Any]:
        """Record the bound symbol that connects the outputs with the backward; return the outputs."""
        results = self._results(outputs, context)
        tensors = tuple(outputs[index] for index in results.indices)
        self._require_unshared(results.of_kind(tensors, VIEW), context)
        inputs = tuple(value if isinstance(value, torch.Tensor) else None for value in self._args)
        saved = (tuple(context.to_save), *self._kept_attributes(context), context.materialize_grads)
        with without_functions():
            connecting = self._run.recorder.function(
                connecting_operation(self._kind), (inputs, tensors, results, *saved), {}
            )
        connected = list(outputs)
        for index, view in zip(results.indices, connecting, strict=True):
            if results.kind_of[index] == VIEW:
                connected[index] = view
        return connected

    def _results(self, outputs: tuple[Any, ...], context: ForwardContext) -> ForwardResults:
        """Return the tensors among the outputs, each with the way in which it is connected with the backward."""
        tensors = {index: output for index, output in enumerate(outputs) if isinstance(output, torch.Tensor)}
        if len(set(map(id, tensors.values()))) < len(tensors):
            self._refuse("returns a tensor twice")
        self._require_dirty_results(tensors.values(), context)
        kinds = {index: self._kind_of(tensor, context) for index, tensor in tensors.items()}
        return ForwardResults(len(outputs), kinds)

    def _require_dirty_results(self, outputs: Iterable[torch.Tensor], context: ForwardContext) -> None:
        """Refuse a dirty tensor that is not both an input and an output, or that is a leaf with a gradient."""
        returned_inputs = set(map(id, self._args)) & set(map(id, outputs)) - set(map(id, context.non_differentiable))
        if any(id(tensor) not in returned_inputs for tensor in context.dirty_tensors):
            self._refuse(WRONG_MARK_DIRTY)
        if any(map(self._is_leaf, context.dirty_tensors)):
            self._refuse("writes to a leaf that requires a gradient, which eager PyTorch refuses too")

    def _kind_of(self, tensor: torch.Tensor, context: ForwardContext) -> str:
        """Return the way in which a result is connected with the backward: `CONSTANT` (not at all), `ITSELF` or `VIEW`.

        For an input or a view, a new view is connected, so that the tensor itself is unchanged. An input that the
        forward has written to is connected itself, because the program may use the input later.
        """
        is_dirty = any(tensor is written for written in context.dirty_tensors)
        is_given = any(tensor is value for value in self._args)
        if not is_given and (self._requires_grad(tensor) or self._run.outside.path_of(tensor) is not None):
            self._refuse("returns a tensor from outside the function")
        dtype = self._attribute_of_fake(tensor, "dtype")
        is_marked = any(tensor is marked for marked in context.non_differentiable)
        if is_marked or not (dtype.is_floating_point or dtype.is_complex):
            return CONSTANT
        if is_dirty:
            return ITSELF
        return VIEW if is_given or self._attribute_of_fake(tensor, "_is_view") else ITSELF

    def _is_leaf(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is a leaf that requires a gradient. The fake of an outside leaf is no leaf."""
        with torch._C.DisableTorchFunction():
            is_outside_leaf = self._run.recorder.tensors.is_outside(tensor) and tensor.is_leaf
        return self._requires_grad(tensor) and (is_outside_leaf or self._attribute_of_fake(tensor, "is_leaf"))

    def _requires_grad(self, value: object) -> bool:
        return isinstance(value, torch.Tensor) and bool(self._attribute_of_fake(value, "requires_grad"))

    def _attribute_of_fake(self, tensor: torch.Tensor, name: str) -> Any:
        """Return an attribute, or the result of a method, of the tensor's fake."""
        fake = self._run.recorder.tensors.fake(tensor)
        with torch._C.DisableTorchFunction():
            value = getattr(fake, name)
            return value() if callable(value) else value

    def _require_unshared(self, tensors: tuple[Any, ...], context: ForwardContext) -> None:
        """Refuse a view that is returned and also stored: the program gets another tensor for the returned view."""
        apart = set(map(id, tensors)) - set(map(id, self._args))
        written = self._run.outside.effects.written_values()
        if apart and any(id(value) in apart for value in values_in((self._args, vars(context), written), set())):
            self._refuse("returns a view and also keeps it in another object")

    def _kept_attributes(self, context: ForwardContext) -> tuple[Snapshot, tuple[Any, ...]]:
        """Return a snapshot of the attributes of `ctx` for the backward, and the values in it.

        The backward gets outside objects in their state when the backward runs, and copies of other objects.
        """
        attributes = context.attributes()
        objects = ObjectSnapshot(self._run.outside, [attributes], self._refuse)
        with without_functions():
            snapshot = objects.of(attributes)
        objects.require_same(lambda value: isinstance(value, BY_IDENTITY) and not refers_to_tensors(value))
        for value, _ in objects.pairs:
            if self._kept.includes(value):
                self._refuse(f"keeps {object_of_class(type(value))} for its backward that another function keeps too")
            if not isinstance(value, (*SHALLOWLY_IMMUTABLE, CellType)) or refers_to_tensors(value):
                self._kept.add(value, self._refuse)
        return snapshot, tuple(objects.values)


def values_in(value: object, seen: set[int]) -> Iterator[Any]:
    """Yield an object and all objects that it refers to, directly or indirectly, except through tensors and modules."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, FunctionType) and id(value) not in seen:
            seen.add(id(value))
            waiting += (*(value.__closure__ or ()), *(value.__defaults__ or ()))
        if id(value) in seen or is_constant(value) or isinstance(value, NOT_SEARCHED):
            continue
        seen.add(id(value))
        yield value
        if not isinstance(value, torch.Tensor):
            waiting += gc.get_referents(value)
