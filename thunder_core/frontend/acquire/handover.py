"""Handover of what an inner program read and wrote: the outer one's guards, and what both may not touch."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NoReturn

import torch

from thunder_core.foundation.errors import SourceLine
from thunder_core.frontend.acquire.outside.guards import Guard, OfConstant, OfTwoPaths, TensorMetadata
from thunder_core.frontend.acquire.outside.object_guards import Absent
from thunder_core.frontend.acquire.outside.outside import Outside
from thunder_core.frontend.acquire.outside.paths import Path
from thunder_core.tracing.ir.constants import BY_IDENTITY, is_constant


class Handover:
    """Reads and writes of an inner program that is called by one bound symbol, at a line, of an outer one.

    The inner program does its own reads and writes when that bound symbol runs, the outer one before its first bound
    symbol and behind its last. So neither may read or write what the other one writes; `refuse(what)` raises where that
    is so.
    """

    def __init__(
        self, outer: Outside, inner: Outside, line: SourceLine | None, refuse: Callable[[str], NoReturn]
    ) -> None:
        self._line = line
        self.outer = outer
        self.inner = inner
        self._refuse = refuse
        self._translations: dict[Path, Path | None] = {}

    def check(self) -> None:
        """Refuse what the inner program reads or writes of the outer one's writes, and close what it writes to it."""
        for path in self.met():
            if self.is_changed(path):
                shown = self._translated(path) or path
                self._refuse(f"reads or writes {shown}, which the calling program has changed before")
        printed = any(effect.owner is None for effect in self.outer.effects.effects)
        for effect in self.inner.effects.effects:
            if effect.owner is None and printed:
                self._refuse("prints after the calling program has printed")
            if effect.owner is not None:
                self._close(effect.owner)

    def is_changed(self, path: Path) -> bool:
        """Whether the outer program, or another one that it calls, has changed what lies at a path until now."""
        owner, key = path.parent.value if path.parent is not None else None, path.key
        effects = self.outer.effects
        written = type(key) is str and (effects.has_written(owner, key) or effects.has_stored(owner, key))
        return written or self._is_changed(owner) or self._is_changed(path.value)

    def _is_changed(self, owner: Any) -> bool:
        return id(owner) in self.outer.effects.originals or id(owner) in self.outer.closed

    def _close(self, owner: Path) -> None:
        if isinstance(owner.value, torch.Tensor):
            self._refuse("sets an attribute of a tensor, or runs backward()")
        if self.outer.path_of(owner.value) is None and self._translated(owner) is None:
            self._refuse(f"writes to a {type(owner.value).__name__} that the calling program makes")
        self.outer.closed[id(owner.value)] = (owner.value, self._line)

    def written(self) -> Path | None:
        """The path of the inner program to the first object that it writes to, if it writes to one."""
        return next((effect.owner for effect in self.inner.effects.effects if effect.owner is not None), None)

    def met(self) -> Iterator[Path]:
        """Every path of the inner program: to what it met, guarded and wrote to, in no order."""
        yield from self.inner.paths.values()
        for guard in self.inner.guards.values():
            yield guard.path
        for effect in self.inner.effects.effects:
            if effect.owner is not None:
                yield effect.owner.attribute(effect.name, None) if effect.kind in ("set", "delete") else effect.owner

    def guard(self) -> None:
        """Have the outer program guard what the inner one read: it holds for the same world."""
        for path in list(self.inner.paths.values()):
            translated = self._translated(path)
            if translated is not None and translated.parent is not None:
                self.outer.paths.setdefault(id(path.value), translated)
                self._tell(translated)
        for guard in list(self.inner.guards.values()):
            if isinstance(guard, TensorMetadata) or isinstance(guard.path.value, torch.Tensor):
                continue  # the program that calls has guards of its own for these
            outer_guard = self._translated_guard(guard)
            if outer_guard is None:
                continue
            if isinstance(guard, OfConstant):  # a constant has no path of its own
                self._tell(outer_guard.path)
            self._add(outer_guard)

    def _tell(self, path: Path) -> None:
        """Note what is read by a path as a surprise to a functional program, unless it is code."""
        if self.outer.surprises is not None and not isinstance(path.value, (*BY_IDENTITY, types.CellType)):
            self.outer.surprises.note(path)

    def _add(self, guard: Guard) -> None:
        if isinstance(guard, Absent):
            for name in guard.names:
                self.outer.absent(guard.path, name)
        else:
            self.outer.guard(guard)

    def _translated_guard(self, guard: Guard) -> Guard | None:
        """The guard on the outer program's paths; None where the outer program gives what lies at one of them."""
        path = self._translated(guard.path)
        if path is None or not isinstance(guard, OfTwoPaths):
            return None if path is None else replace(guard, path=path)
        other = self._translated(guard.other)
        return None if other is None else replace(guard, path=path, other=other)

    def _translated(self, path: Path) -> Path | None:
        """The outer program's way to what lies at a path; None where the outer program gives it."""
        if path not in self._translations:
            self._translations[path] = self._translate(path)
        return self._translations[path]

    def _translate(self, path: Path) -> Path | None:
        outer_path = None if is_constant(path.value) else self.outer.path_of(path.value)
        if outer_path is not None:
            return outer_path
        if path.parent is None:
            return None if path.step == "root" else self.outer.root(path.step, path.key, path.value)
        parent = self._translated(path.parent)
        if parent is None:
            return None
        key = self._translated(path.key) if isinstance(path.key, Path) else path.key
        return None if key is None and path.key is not None else parent.child(path.step, key, path.value)
