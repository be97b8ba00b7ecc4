"""Copies of the values that a program prints or logs: the epilogue shows the values of each call."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from thunder_core.frontend.acquire.codegen.rebuilding import is_rebuildable
from thunder_core.frontend.acquire.outside.containers import container_base
from thunder_core.frontend.acquire.outside.reductions import TensorToPrint
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.tracing.capture.symbolic.numbers import SymbolicNumber
from thunder_core.tracing.capture.torch_facts.texts import SymbolicText
from thunder_core.tracing.ir.constants import BY_IDENTITY, is_constant
from thunder_core.tracing.ir.stored_attributes import attributes_of, pairs_of
from thunder_core.tracing.ir.tree import of_class
from thunder_core.tracing.library.objects import fill, new

CONTAINERS = (list, tuple, dict, set, frozenset, deque, OrderedDict, defaultdict)


class NotShownError(Exception):
    """The error for a value that the epilogue cannot create again, so that it prints the value's text from tracing."""


def copy_for_output(run: TracedRun, value: object, copies: dict[int, Any]) -> Any:
    """Return a copy of a value with copies of its tensors and of objects that the program made.

    The program may change these later. Objects from outside without tensors are not copied: the epilogue shows them as
    they are at this point of the epilogue.
    """
    if id(value) in copies:
        return copies[id(value)]
    if isinstance(value, torch.Tensor):
        return copies.setdefault(id(value), shown_tensor(run, value))
    if is_constant(value) or isinstance(value, (SymbolicNumber, *BY_IDENTITY)) or type(value) is SymbolicText:
        return value
    if run.outside.path_of(value) is not None:
        if type(value) not in CONTAINERS:
            run.output.printed.append((len(run.recorder.bound_symbols), value, run.location().source))
            return value
        if not contains_tensors(value, set()):
            return value
        run.outside.expand_whole(value)
    return _copy(run, value, copies)


def shown_tensor(run: TracedRun, tensor: torch.Tensor) -> Any:
    """Return a copy of a tensor's values, with the autograd state that the tensor's text shows."""
    values, data = tensor.detach().clone(), run.recorder.data
    if not data.requires_grad(tensor):
        return values
    return TensorToPrint(values, torch.Tensor if type(tensor) is FakeTensor else type(tensor), data.node_of(tensor))


def _copy(run: TracedRun, value: Any, copies: dict[int, Any]) -> Any:
    kind: Any = type(value)

    def part(item: object) -> Any:
        return copy_for_output(run, item, copies)

    if isinstance(value, tuple):
        items = tuple.__new__(tuple, map(part, tuple.__iter__(value)))
        return items if kind is tuple else of_class(kind, items, getattr(value, "__dict__", {}))
    if kind is slice:
        return slice(*map(part, (value.start, value.stop, value.step)))
    if kind is frozenset:
        return frozenset(map(part, value))
    if not is_rebuildable(kind) or getattr(value, "maxlen", None) is not None:
        raise NotShownError
    copy = copies[id(value)] = new(kind)
    state = {name: part(item) for name, item in attributes_of(value).items()}
    if isinstance(value, dict):
        fill(copy, items={part(key): part(item) for key, item in pairs_of(value)}, state=state)
    else:
        base = container_base(value)
        fill(copy, items=[part(item) for item in base.__iter__(value)] if base else (), state=state)
    return copy


def contains_tensors(value: Any, seen: set[int]) -> bool:
    """Whether a container contains tensors, at any depth."""
    if isinstance(value, torch.Tensor | SymbolicNumber) or type(value) is SymbolicText:
        return True
    if type(value) not in CONTAINERS or id(value) in seen:
        return False
    seen.add(id(value))
    return any(contains_tensors(item, seen) for item in (value.values() if isinstance(value, dict) else value))
