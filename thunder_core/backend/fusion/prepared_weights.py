"""Weights in the form that a kernel reads, such as a packed layout.

A form is made at its first use, cached as long as the weight exists, and made again after a write to the weight.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from threading import RLock
from typing import Any, Generic, TypeVar

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from thunder_core.backend.fusion.written_memory import is_held
from thunder_core.tracing.analysis.aliasing import names_written_to
from thunder_core.tracing.ir.proxy import Proxy, TensorProxy
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.library.changes.kept_results import RUNNING

Form = TypeVar("Form")
# The version, the address, the storage, the shape and the strides of a tensor.
TensorState = tuple[int, int, int, torch.Size, tuple[int, ...]]
State = list[TensorState | None]


@dataclass(frozen=True, eq=False)
class KeptForm(Generic[Form]):
    """A form of a weight, and the `state` of the tensors that the form was computed from.

    The weak references in `storages` keep each storage's number in use, so that no later storage has the same number.
    """

    state: State
    form: Form
    storages: tuple[Any, ...]


@dataclass(eq=False)
class KeptForms(Generic[Form]):
    """The forms of one weight, by the settings of the kernel that reads them."""

    weight: weakref.ref[torch.Tensor]
    forms: dict[Hashable, KeptForm[Form]] = field(default_factory=dict)


@dataclass(eq=False)
class PreparedWeights(Generic[Form]):
    """The prepared forms of weights, by weight and by the settings of the kernel, for all programs of the process.

    A form is freed with its weight. A form is made again if the version counter, the address, the storage, the shape or
    the strides of one of its source tensors have changed. Writes that do not increase the version counter
    (`weight.data[0] = 1`, or by NumPy) are not noticed. Tensors that were made in inference mode have no version
    counter: their form is made at each call.
    """

    forms: dict[int, KeptForms[Form]] = field(default_factory=dict)  # by the `id` of the weight
    lock: RLock = field(default_factory=RLock)

    def form_of(
        self, tensors: Sequence[torch.Tensor | None], make: Callable[[], Form], settings: Hashable = None
    ) -> Form:
        """Return the cached form of the weight `tensors[0]`, or the form that `make` computes from all tensors.

        If the running call has compared the tensors already, the cached form is returned at once.
        """
        results = RUNNING.results
        if results is None:
            return self._compared_form(tensors, make, settings).form
        key = (self, settings, *map(id, tensors))
        entry: KeptForm[Form] | None = results.find(key)
        if entry is None:
            entry = self._compared_form(tensors, make, settings)
            results.add(key, tensors, entry)
        return entry.form

    def _compared_form(
        self, tensors: Sequence[torch.Tensor | None], make: Callable[[], Form], settings: Hashable
    ) -> KeptForm[Form]:
        """Return the cached form if its tensors are unchanged, or a new form."""
        try:
            state = list(map(_state_of, tensors))
        except RuntimeError:
            if any(tensor is not None and tensor.is_inference() for tensor in tensors):
                return KeptForm([], make(), ())
            raise
        weight = tensors[0]
        assert weight is not None
        forms_of_weight = self.forms.get(id(weight))
        entry = (
            forms_of_weight.forms.get(settings)
            if forms_of_weight is not None and forms_of_weight.weight() is weight
            else None
        )
        if entry is None or entry.state != state:
            owners = (tensor.untyped_storage() for tensor in tensors if tensor is not None)
            storages = tuple(StorageWeakRef(owner) for owner in owners)  # type: ignore[no-untyped-call]
            # `make` reads the tensors after `state` was read, so the next call notices a write in between
            with self.lock:
                entry = KeptForm(state, make(), storages)
                self._cached_forms_of(weight).forms[settings] = entry
        return entry

    def _cached_forms_of(self, weight: torch.Tensor) -> KeptForms[Form]:
        """Return the cached forms of a weight, an object that is freed with the weight."""
        number = id(weight)
        forms_of_weight = self.forms.get(number)
        if forms_of_weight is None or forms_of_weight.weight() is not weight:
            forms_of_weight = self.forms[number] = KeptForms(weakref.ref(weight, partial(self._free, number)))
        return forms_of_weight

    def _free(self, number: int, reference: weakref.ref[torch.Tensor]) -> None:
        """Free the forms of a weight that was freed, unless another weight has its `id` by now."""
        forms_of_weight = self.forms.get(number)
        if forms_of_weight is not None and forms_of_weight.weight is reference:
            self.forms.pop(number, None)


def _state_of(tensor: torch.Tensor | None) -> TensorState | None:
    """Return the version, address, number of the storage, shape and strides of a tensor; None for a missing tensor.

    The address alone is not enough: two assignments to `weight.data` may reuse the first address for other values. A
    view that is assigned to `weight.data` has the same address and storage.
    """
    if tensor is None:
        return None
    return tensor._version, tensor.data_ptr(), tensor.untyped_storage()._cdata, tensor.shape, tensor.stride()


_has_backward: ContextVar[bool] = ContextVar("the trace has a backward", default=False)


@contextmanager
def claiming_forward() -> Iterator[None]:
    """Mark the traces that are claimed within the block as forwards, whose weights an optimizer may update."""
    token = _has_backward.set(True)
    try:
        yield
    finally:
        _has_backward.reset(token)


def names_to_prepare(trace: Trace, recorded: Sequence[bool]) -> set[str]:
    """Return the names of the inputs that are attributes of objects, such as parameters, and are not written to.

    In training, inputs that require a gradient are left out, because each step of an optimizer changes them. A trace
    belongs to training if it has a backward, or if autograd records one of its bound symbols (`recorded`).
    """
    is_training = _has_backward.get() or any(recorded)
    held_names = {
        proxy.name
        for proxy in trace.inputs
        if is_held(trace.origins.get(proxy.name, "")) and not (is_training and requires_grad(proxy))
    }
    return held_names - names_written_to(trace)


def requires_grad(proxy: Proxy) -> bool:
    """Whether an input is a tensor that requires a gradient."""
    return isinstance(proxy, TensorProxy) and proxy.requires_grad
