"""Triton kernels that code of the user's launches while it runs on tensors without data: each launch is noted.

A program's own launches are traced. Those of a `torch.autograd.Function` or an operator that runs natively come here.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from thunder_core.tracing.capture.torch_facts.quiet_attempts import quiet_attempt
from thunder_core.tracing.capture.torch_facts.triton_writes import written_places
from thunder_core.tracing.ir.tree import leaves, replace_leaves
from thunder_core.tracing.library.triton_kernels import grids_of, launch

# The classes of Triton's kernels, with what wraps them: by the name, since Triton is not there everywhere.
CLASSES = (
    ("triton.runtime.jit", "JITFunction"),
    ("triton.runtime.interpreter", "InterpretedFunction"),
    ("triton.runtime.autotuner", "Autotuner"),
    ("triton.runtime.autotuner", "Heuristics"),
)
RUNS = frozenset((module, f"{name}.run") for module, name in CLASSES)

_noted: set[type] = set()
_lock = threading.Lock()
_attempts = [0]  # how many are under way in this process


@contextmanager
def attempt_without_data() -> Iterator[None]:
    """While this lasts, code runs on tensors without data: launches are noted, and failures are not logged.

    The classes of kernels keep the method that notes launches, since programs are guarded by it.
    """
    with _lock:
        for kind in _classes():
            kind.run = _noting(kind.run)  # type: ignore[attr-defined]
            _noted.add(kind)
        _attempts[0] += 1
    try:
        with quiet_attempt():
            yield
    finally:
        with _lock:
            _attempts[0] -= 1


def _classes() -> Iterator[type]:
    """The classes of kernels that do not note launches yet."""
    for module, name in CLASSES:
        kind = getattr(sys.modules.get(module), name, None)
        if isinstance(kind, type) and kind not in _noted and "run" in kind.__dict__:
            yield kind


def _noting(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def run(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        given = (args, kwargs)
        if not _attempts[0] or not any(isinstance(leaf, FakeTensor) for leaf in leaves(given)):
            return original(kernel, *args, **kwargs)
        return _note(kernel, *args, **kwargs)

    return run


def _note(kernel: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> None:
    args, kwargs = replace_leaves((args, kwargs), plain_number)
    grids = grids_of(kernel, grid, args, kwargs, lambda function, meta: function(meta))
    launch(kernel, grids, args, kwargs, written_places(kernel, args, kwargs))


def plain_number(leaf: Any) -> Any:
    """The value of a symbolic number, which is guarded: kernels are launched with numbers."""
    return int(leaf) if isinstance(leaf, torch.SymInt) else float(leaf) if isinstance(leaf, torch.SymFloat) else leaf
