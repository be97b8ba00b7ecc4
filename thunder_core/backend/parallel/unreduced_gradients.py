"""Unreduced gradients: full gradients that each rank accumulates without communication before they are reduced.

They implement `set_requires_gradient_sync` of PyTorch's `fully_shard`. A program that does not reduce the gradient of a
sharded parameter differentiates with respect to an unsharded leaf: a tensor with the parameter's full shape, whose
elements share the memory of one element. The leaf's gradients are accumulated until a backward reduces their sum.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from thunder_core.backend.parallel.buckets import layer_of_path

# Attributes of modules.
UNSHARDED = "_unsharded_leaves"  # maps names of the module's parameters to their unsharded leaves
UNSYNCHRONIZED = "_unsynchronized"  # the names of the module's parameters whose gradients are not reduced now
SYNCHRONIZATION = "_gradient_synchronization"  # of a unit of `fully_shard`: its `Synchronization`, and the unit's path
# Attributes of the tensors that programs read in place of a parameter.
OWNER = "_thunder_owner"  # a weak reference to the DTensor parameter that gets the gradients of the tensor
UNREDUCED = "_unreduced_gradient"  # the `UnreducedGradient` of the shard

Reduce = Callable[[torch.Tensor], None]


@dataclass(eq=False)
class UnreducedGradient:
    """The gradient that backwards have accumulated for one parameter without communication.

    `gradient` is None if nothing has been accumulated. `reduce` reduces a gradient over the ranks and adds the result
    to the parameter's `.grad`. `gradient` has the dtype `reduce_dtype`, or its own dtype if `reduce_dtype` is None. If
    `is_synchronized` is set, backwards reduce the gradients of the parameter.
    """

    unsharded: torch.Tensor
    reduce: Reduce
    reduce_dtype: torch.dtype | None
    synchronization: Synchronization
    is_synchronized: bool = True
    gradient: torch.Tensor | None = None

    def add(self, gradient: torch.Tensor) -> None:
        """Add the gradient of a backward to the accumulated gradient."""
        self.synchronization.pending.add(self)
        if self.gradient is None:
            self.gradient = gradient if self.reduce_dtype is None else gradient.to(self.reduce_dtype)
        else:
            self.gradient += gradient

    def take(self) -> torch.Tensor | None:
        """Remove the accumulated gradient and return it; return None if nothing has been accumulated."""
        self.synchronization.pending.discard(self)
        gradient, self.gradient = self.gradient, None
        return gradient


@dataclass(eq=False)
class Synchronization:
    """The unreduced gradients of a sharded model, by the paths of the parameters.

    `holders` are the modules with parameters, each with the paths of its parameters by name. `pending` are the entries
    of `unreduced_gradients` that have accumulated a gradient.
    """

    unreduced_gradients: dict[str, UnreducedGradient] = field(default_factory=dict)
    holders: list[tuple[torch.nn.Module, Mapping[str, str]]] = field(default_factory=list)
    pending: set[UnreducedGradient] = field(default_factory=set)
    queued_pass: int = -1  # the backward pass for whose end `queue` has last requested the reduction

    def require(self, unit: str, required: bool, *, recurse: bool) -> None:
        """Set whether backwards reduce the gradients of a unit, and with `recurse` also of the units inside it."""
        for path, unreduced_gradient in self.unreduced_gradients.items():
            if is_below(path, unit) if recurse else layer_of_path(path) == unit:
                unreduced_gradient.is_synchronized = required
        self.update()

    def update(self) -> None:
        """Store in each module the names of its parameters whose gradients are not reduced; programs read the names."""
        for module, paths in self.holders:
            names = (name for name, path in paths.items() if path in self.unreduced_gradients)
            module.__dict__[UNSYNCHRONIZED] = tuple(
                name for name in names if not self.unreduced_gradients[paths[name]].is_synchronized
            )

    def queue(self) -> None:
        """Let autograd call `_reduce` at the end of the current backward pass."""
        current_pass = torch._C._current_graph_task_id()
        if self.pending and self.queued_pass != current_pass:
            self.queued_pass = current_pass
            torch.autograd.Variable._execution_engine.queue_callback(self._reduce)

    @torch.no_grad()
    def _reduce(self) -> None:
        """Reduce the unreduced gradients of synchronized parameters, in the order of the parameters on all ranks."""
        for unreduced_gradient in self.unreduced_gradients.values():
            if unreduced_gradient.is_synchronized and unreduced_gradient.gradient is not None:
                unreduced_gradient.reduce(unreduced_gradient.gradient)
                unreduced_gradient.take()


def is_below(path: str, unit: str) -> bool:
    """Whether a parameter belongs to a module or to a module inside it."""
    return not unit or path.startswith(f"{unit}.")


def register_accumulation_hook(unreduced_gradient: UnreducedGradient) -> None:
    """Let autograd add the gradients of the unsharded leaf to the unreduced gradient."""
    reference = weakref.ref(unreduced_gradient)

    def accumulate(unsharded: torch.Tensor) -> None:
        gradient, unsharded.grad = unsharded.grad, None
        unreduced_gradient = reference()
        if unreduced_gradient is None or gradient is None:
            return
        unreduced_gradient.add(gradient)
        if unreduced_gradient.is_synchronized:  # `set_requires_gradient_sync(True)` was called after the forward
            unreduced_gradient.synchronization.queue()

    requires_grad = unreduced_gradient.unsharded.requires_grad
    unreduced_gradient.unsharded.requires_grad_().register_post_accumulate_grad_hook(accumulate)  # type: ignore[no-untyped-call]
    unreduced_gradient.unsharded.requires_grad_(requires_grad)


def unsharded_leaf(shard: torch.Tensor, rows: int, requires_grad: bool) -> torch.Tensor:
    """Return an unsharded leaf with the given number of rows: all its elements share the memory of one element."""
    return shard.new_zeros(()).expand(rows, *shard.shape[1:]).requires_grad_(requires_grad)


def set_requires_gradient_sync(self: object, requires_gradient_sync: bool, *, recurse: bool = True) -> None:
    """Set whether backwards reduce gradients; without reduction, the gradients are accumulated on each rank.

    A later backward that reduces gradients reduces the accumulated gradients, too. With `recurse`, the setting applies
    to all parameters in this module, and otherwise only to the parameters that belong to none of its inner units.
    """
    synchronization, path = self.__dict__[SYNCHRONIZATION]
    synchronization.require(path, requires_gradient_sync, recurse=recurse)


@contextmanager
def no_sync(self: object) -> Iterator[None]:
    """Accumulate the gradients of the backward passes inside the block without communication.

    After the block, parameters are synchronized again if they were before the block.
    """
    synchronization, path = self.__dict__[SYNCHRONIZATION]
    before = {
        unreduced_gradient: unreduced_gradient.is_synchronized
        for unreduced_gradient in synchronization.unreduced_gradients.values()
    }
    synchronization.require(path, required=False, recurse=True)
    try:
        yield
    finally:
        for unreduced_gradient, is_synchronized in before.items():
            unreduced_gradient.is_synchronized = is_synchronized
        synchronization.update()


# The methods that a sharded module gets.
METHODS: Mapping[str, Any] = {"set_requires_gradient_sync": set_requires_gradient_sync, "no_sync": no_sync}
