"""Results that are computed from tensors, such as packed weights, and kept while the tensors are unchanged.

To use a kept result, its tensors must be compared with the tensors that it was computed from, which takes some
microseconds for each result. A computation with such results therefore compares all their tensors once, at the start of
a call, by reading words of memory (`tensor_words.py`). While it runs, a result is found by its tensors alone.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from thunder_core.tracing.library.changes.memory_words import address_of
from thunder_core.tracing.library.changes.module_state import CannotWatch
from thunder_core.tracing.library.changes.tensor_words import TensorStates

MAX_CHANGES = 16  # calls with changed tensors after which the tensors are no longer compared at the start of a call
Computation = Callable[..., Any]


class KeptResults:
    """The results that a running call may use without comparing their tensors.

    The tensors are those of `states`, which this call or an earlier call has found unchanged. Results are found by
    weak references, and so are freed with their owner.
    """

    def __init__(self, tensors: tuple[torch.Tensor, ...] = ()) -> None:
        self.states = TensorStates(tensors) if tensors else None
        self._compared = frozenset(map(address_of, tensors))
        self._results: dict[Any, weakref.ref[Any]] = {}
        self.requested: set[int] = set()  # the addresses of the tensors of results that were not found

    def find(self, key: object) -> Any:
        """Return the result with a key, which contains the addresses of its tensors; None if there is none."""
        reference = self._results.get(key)
        return None if reference is None else reference()

    def add(self, key: object, tensors: Sequence[torch.Tensor | None], result: object) -> None:
        """Keep a result if all its tensors were compared."""
        addresses = {address_of(tensor) for tensor in tensors if tensor is not None}
        self.requested |= addresses
        if addresses <= self._compared:
            self._results[key] = weakref.ref(result)


class RunningCall(threading.local):
    """The kept results of the computation that runs in a thread; None outside of computations that keep results."""

    results: KeptResults | None = None


RUNNING = RunningCall()


class Owner(Protocol):
    """The program that calls a computation."""

    def replace_computation(self, computation: Computation) -> None:
        """Let later calls run another function, which computes the same."""


class ComparingComputation:
    """A computation that compares the tensors of its kept results at the start of a call.

    The first call finds out which inputs these are. If there are none, or if their changes cannot be detected, later
    calls run the computation alone.
    """

    def __init__(self, program: Owner, computation: Computation) -> None:
        self._program = weakref.ref(program)  # the program refers to this object
        self._computation = computation
        self._positions: tuple[int, ...] = ()  # of the inputs that results are computed from
        self._results: KeptResults | None = None
        self._changes = 0

    def first_call(self, *inputs: Any) -> Any:
        """Run the computation, and find the inputs that results are computed from."""
        outputs = self._run(results := KeptResults(), inputs)
        self._positions = tuple(
            position for position, value in enumerate(inputs) if address_of(value) in results.requested
        )
        self._install(self.call if self._positions else self._computation)
        return outputs

    def call(self, *inputs: Any) -> Any:
        """Compare the tensors of the kept results, and run the computation."""
        tensors = tuple([inputs[position] for position in self._positions])
        results = self._results
        if results is None or results.states is None or not results.states.are_unchanged(tensors):
            results = self._results = self._forget(tensors)
        return self._run(results, inputs)

    def _forget(self, tensors: tuple[torch.Tensor, ...]) -> KeptResults | None:
        """Return an object for the results of changed tensors; None if the tensors are no longer compared."""
        self._changes += 1
        if self._changes <= MAX_CHANGES:
            try:
                return KeptResults(tensors)
            except CannotWatch:
                pass
        self._install(self._computation)
        return None

    def _run(self, results: KeptResults | None, inputs: tuple[Any, ...]) -> Any:
        """Run the computation, which may use some results."""
        outer, RUNNING.results = RUNNING.results, results
        try:
            return self._computation(*inputs)
        finally:
            RUNNING.results = outer

    def _install(self, computation: Computation) -> None:
        program = self._program()
        if program is not None:
            program.replace_computation(computation)
