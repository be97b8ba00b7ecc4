"""Hooks by which autograd packs the tensors that it saves: a program that sets some puts them back where it raises."""

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
    """Have autograd pack what it saves from now on, and unpack it in a backward pass."""
    HOOKS._push_saved_tensors_default_hooks(pack, unpack)
    DEPTH.number += 1


def unset_saved_tensors_hooks() -> None:
    """Have autograd pack what it saves as it did before the last pair of hooks was set."""
    HOOKS._pop_saved_tensors_default_hooks()
    DEPTH.number -= 1


def keep_saved_tensors_hooks() -> Callable[[], None]:
    """A function that unsets the pairs of hooks that were set since."""
    return partial(_unset_to, DEPTH.number)


def _unset_to(depth: int) -> None:
    while DEPTH.number > depth:
        unset_saved_tensors_hooks()


def are_users_hooks_set() -> bool:
    """Whether hooks of the user's pack what autograd saves in this thread.

    Those of PyTorch's own (`torch.utils.checkpoint`, `save_on_cpu`) give back what they were given, whatever it is.
    """
    hooks = HOOKS._top_saved_tensors_default_hooks(False)
    return hooks is not None and str(getattr(hooks[0], "__module__", None)).partition(".")[0] != "torch"


@contextmanager
def without_saved_tensors_hooks() -> Iterator[None]:
    """While this lasts, autograd packs nothing: tensors without data are none of the user's."""
    before = HOOKS._saved_tensors_hooks_set_tracing(True)
    try:
        yield
    finally:
        HOOKS._saved_tensors_hooks_set_tracing(before)


NAMES = frozenset(f"{__name__}.{one.__name__}" for one in (set_saved_tensors_hooks, unset_saved_tensors_hooks))
