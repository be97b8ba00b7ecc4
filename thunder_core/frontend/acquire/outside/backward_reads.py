"""Values from outside that the backward of a `torch.autograd.Function` reads, and that may change before it runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

import torch

from thunder_core.frontend.acquire.outside.guards.guard import Guard
from thunder_core.frontend.acquire.outside.guards.values import OfConstant
from thunder_core.frontend.acquire.outside.paths import Path
from thunder_core.frontend.acquire.outside.sharp import is_users_file
from thunder_core.passes.autodiff.applied.value_readers import STEPS, ValueReader
from thunder_core.tracing.ir.constants import BY_IDENTITY


class BackwardStart:
    """A function that picks the tracked outputs of a forward. A probe calls it between the forward and the backward.

    From this call on, the last run of `probes` notes its reads as later reads, which are those of the backward.
    """

    def __init__(self, pick: Callable[[Any], Any], probes: list[Any]) -> None:
        self._pick = pick
        self._probes = probes

    def __call__(self, output: Any) -> Any:
        """Return the tracked outputs."""
        self._probes[-1].outside.note_later_reads()
        return self._pick(output)


def changeable_paths(guards: Iterable[Guard], outer_path: Callable[[Path], Path | None]) -> Iterator[Path]:
    """Yield the paths to constants that a backward with these guards reads, and that may change.

    Functions, classes and modules are excluded, and so are constants of libraries and values that the program passes.
    `outer_path` returns the program's path for a path of the backward; None for a value that the program passes.
    """
    for guard in guards:
        if isinstance(guard, OfConstant) and not isinstance(guard.value, BY_IDENTITY):
            path = outer_path(guard.path)
            if path is not None and not any(map(_is_fixed, path.lineage()[:-1])):
                yield path


def _is_fixed(path: Path) -> bool:
    """Whether no value in the object at a path ever changes: metadata of tensors, objects of libraries."""
    owner = path.value
    if isinstance(owner, torch.Tensor) or path.key in ("__defaults__", "__kwdefaults__"):
        return True
    if isinstance(owner, type):
        owner = sys.modules.get(owner.__module__)
    elif path.step == "globals" and isinstance(owner, dict):
        owner = sys.modules.get(str(owner.get("__name__")))
    if not isinstance(owner, ModuleType):
        return False
    return not is_users_file(str(getattr(owner, "__file__", "<frozen module>")))


def reader_of(path: Path) -> ValueReader | None:
    """Return the reader of the value at a path; None for a path that starts at an argument or is computed.

    Another call has other arguments.
    """
    root, *steps = path.lineage()
    if root.step == "root" and root.key in ("args", "kwargs"):
        return None
    if any(step.step not in STEPS for step in steps):
        return None
    return ValueReader(root.value, tuple((step.step, step.key) for step in steps))
