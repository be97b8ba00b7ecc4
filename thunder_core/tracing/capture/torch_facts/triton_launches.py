"""Triton kernels that user code launches while it runs on fakes: each launch is recorded.

A program's own launches are traced. Launches in a `torch.autograd.Function` or an operator that runs natively are
handled here.
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
from thunder_core.tracing.capture.torch_facts.triton_writes import written_positions
from thunder_core.tracing.ir.tree import leaves, replace_leaves
from thunder_core.tracing.library.triton_kernels import grids_of, launch

# The classes of Triton's kernels and their wrappers, by name, because Triton may not be installed.
CLASSES = (
    ("triton.runtime.jit", "JITFunction"),
    ("triton.runtime.interpreter", "InterpretedFunction"),
    ("triton.runtime.autotuner", "Autotuner"),
    ("triton.runtime.autotuner", "Heuristics"),
)
RUNS = frozenset((module, f"{name}.run") for module, name in CLASSES)

_recording_kinds: set[type] = set()
_lock = threading.Lock()
_attempts = [0]  # the number of active attempts in this process


@contextmanager
def attempt_without_data() -> Iterator[None]:
    """Run code on fakes during the block: record launches, and log no failures.

    The kernel classes keep the method that records launches after the block, because programs guard the method.
    """
    with _lock:
        for kind in _kernel_classes():
            kind.run = _recording_launch(kind.run)  # type: ignore[attr-defined]
            _recording_kinds.add(kind)
        _attempts[0] += 1
    try:
        with quiet_attempt():
            yield
    finally:
        with _lock:
            _attempts[0] -= 1


def _kernel_classes() -> Iterator[type]:
    """Yield the kernel classes that do not record launches yet."""
    for module, name in CLASSES:
        kind = getattr(sys.modules.get(module), name, None)
        if isinstance(kind, type) and kind not in _recording_kinds and "run" in kind.__dict__:
            yield kind


def _recording_launch(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def run(kernel: object, *args: Any, **kwargs: Any) -> Any:
        arguments = (args, kwargs)
        if not _attempts[0] or not any(isinstance(leaf, FakeTensor) for leaf in leaves(arguments)):
            return original(kernel, *args, **kwargs)
        return _record_launch(kernel, *args, **kwargs)

    return run


def _record_launch(kernel: object, *args: Any, grid: object, warmup: bool = False, **kwargs: Any) -> None:
    args, kwargs = replace_leaves((args, kwargs), plain_number)
    grids = grids_of(kernel, grid, args, kwargs, lambda function, meta: function(meta))
    launch(kernel, grids, args, kwargs, written_positions(kernel, args, kwargs))


def plain_number(leaf: object) -> Any:
    """Return the value of a symbolic number, which is guarded, because kernels are launched with numbers."""
    return int(leaf) if isinstance(leaf, torch.SymInt) else float(leaf) if isinstance(leaf, torch.SymFloat) else leaf
