"""Calls of a subject with arguments. A call can run any number of times, because its effects are undone."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from thunder_core.backend.claiming.copies import copy_values, reason_not_copied
from thunder_core.foundation.errors import NotComparable
from thunder_core.tracing.ir.tree import leaves
from thunder_core.workflow.validation.leaves import Leaves, leaves_of
from thunder_core.workflow.validation.preserved_state import preserve_buffers
from thunder_core.workflow.validation.state import state_of

SEED = 0

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
SHARED_TYPES = (torch.nn.Module, torch.nn.Parameter, type)


@dataclass(frozen=True)
class SubjectCall:
    """A subject with the arguments of a call."""

    subject: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @property
    def roots(self) -> dict[str, Any]:
        """The objects that paths begin with."""
        return {"module": self.subject, "args": self.args, "kwargs": self.kwargs}

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors of the arguments and of a module; a call may draw random numbers on their devices."""
        module = self.subject if isinstance(self.subject, torch.nn.Module) else torch.nn.Module()
        values = (*leaves((self.args, dict(self.kwargs))), *module.parameters(), *module.buffers())
        tensors = (value for value in values if isinstance(value, torch.Tensor))
        return {str(index): tensor for index, tensor in enumerate(tensors)}

    def copy_arguments(self) -> Arguments:
        """Return copies of the arguments, so that a call may write to them."""
        return copy_contents((self.args, dict(self.kwargs)))

    def state(self, arguments: Arguments) -> Leaves:
        """Return the state that a call with these arguments may change: the subject's state, and the arguments."""
        args, kwargs = arguments
        named = {**{str(index): value for index, value in enumerate(args)}, **kwargs}
        model = self.subject if isinstance(self.subject, torch.nn.Module) else torch.nn.Module()
        return state_of(model, named)

    @contextmanager
    def preserve_state(self) -> Iterator[None]:
        """Restore a module's buffers, attributes and hooks, and the generators of Python and NumPy, after the block.

        The generators draw the same numbers in each block.
        """
        with seeded_generators():
            if not isinstance(self.subject, torch.nn.Module):
                yield
                return
            with self._unchanged_module(self.subject):
                yield

    @staticmethod
    @contextmanager
    def _unchanged_module(module: torch.nn.Module) -> Iterator[None]:
        dicts = [entries for part in module.modules() for entries in dicts_of(part)]
        before = [(entries, dict(entries)) for entries in dicts]
        with preserve_buffers(module):
            try:
                yield
            finally:
                for entries, values in before:
                    restore_entries(entries, values)


@contextmanager
def seeded_generators() -> Iterator[None]:
    """Seed the process's generators of Python and NumPy during the block, and restore them afterwards."""
    before, before_of_numpy = random.getstate(), np.random.get_state()
    random.seed(SEED)
    np.random.seed(SEED)
    try:
        yield
    finally:
        random.setstate(before)
        np.random.set_state(before_of_numpy)


def dicts_of(module: torch.nn.Module) -> Iterator[dict[Any, Any]]:
    """Yield a module's `__dict__`, and the dicts in it: its hooks, parameters, buffers and children."""
    yield vars(module)
    yield from (value for value in vars(module).values() if isinstance(value, dict))


def restore_entries(entries: dict[Any, Any], before: Mapping[Any, Any]) -> None:
    """Restore the entries of a dict."""
    if entries.keys() != before.keys() or any(entries[key] is not value for key, value in before.items()):
        entries.clear()
        entries.update(before)


def copy_contents(arguments: Arguments) -> Arguments:
    """Return copies of arguments and their contents; identical objects stay identical.

    Modules and parameters are shared.
    """
    memo: dict[int, Any] = {}
    args, kwargs = arguments
    return tuple(copy_value(value, memo) for value in args), {
        name: copy_value(value, memo) for name, value in kwargs.items()
    }


def copy_value(value: object, memo: dict[int, Any]) -> Any:
    """Return a copy of a value, or the value if it cannot be copied; `memo` has the parts that were copied before."""
    if isinstance(value, SHARED_TYPES) or callable(value):
        return value
    try:
        tensors = leaves_of(value).tensors.values()
        for tensor in tensors:
            shared = isinstance(tensor, SHARED_TYPES)
            memo.setdefault(id(tensor), tensor if shared else copy_tensor(tensor))
        memo.setdefault(id(memo), []).extend(tensors)  # keeps the tensors alive, so that their ids stay valid
        return copy.deepcopy(value, memo)
    except (NotComparable, RuntimeError, TypeError, ValueError, AttributeError):
        return value


def copy_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of a tensor with the same strides."""
    if reason_not_copied(tensor) is not None:
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)
    own: torch.Tensor = copy_values({"": tensor})[""]
    return own.requires_grad_(tensor.requires_grad)
