"""Hooks with which autograd packs saved tensors. If the program that set hooks raises an error, they are unset."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import local
from typing import Any

import torch

HOOKS: Any = torch._C._autograd


class Depth(local):
    """The number of pairs of hooks that programs have set in this thread."""

    number = 0


DEPTH = Depth()


def set_saved_tensors_hooks(pack: Callable[[torch.Tensor], Any], unpack: Callable[[Any], torch.Tensor]) -> None:
    """Set hooks with which autograd packs saved tensors from now on, and unpacks them in a backward pass."""
    HOOKS._push_saved_tensors_default_hooks(pack, unpack)
    DEPTH.number += 1


def unset_saved_tensors_hooks() -> None:
    """Unset the last pair of hooks for saved tensors."""
    HOOKS._pop_saved_tensors_default_hooks()
    DEPTH.number -= 1


def keep_saved_tensors_hooks() -> Callable[[], None]:
    """Return a function that unsets the pairs of hooks that were set after this call."""
    return partial(_unset_to, DEPTH.number)


def _unset_to(depth: int) -> None:
    while DEPTH.number > depth:
        unset_saved_tensors_hooks()


def are_users_hooks_set() -> bool:
    """Whether hooks of the user pack the tensors that autograd saves in this thread.

    Hooks of PyTorch (`torch.utils.checkpoint`, `save_on_cpu`) do not count: they return the packed values unchanged.
    """
    hooks = HOOKS._top_saved_tensors_default_hooks(False)
    return hooks is not None and str(getattr(hooks[0], "__module__", None)).partition(".")[0] != "torch"


def are_hooks_set() -> bool:
    """Whether any hooks pack the tensors that autograd saves in this thread, also hooks of PyTorch."""
    return HOOKS._top_saved_tensors_default_hooks(False) is not None


@contextmanager
def without_saved_tensors_hooks() -> Iterator[None]:
    """Disable the user's hooks during the block, because they must not receive tensors without data."""
    before = HOOKS._saved_tensors_hooks_set_tracing(True)
    try:
        yield
    finally:
        HOOKS._saved_tensors_hooks_set_tracing(before)


NAMES = frozenset(
    f"{__name__}.{function.__name__}" for function in (set_saved_tensors_hooks, unset_saved_tensors_hooks)
)
