"""The reads and writes of an inner program that an outer program calls: guards and conflicts of the outer program."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NoReturn

import torch

from thunder_core.foundation.descriptions import object_of_class
from thunder_core.foundation.errors import CannotReplay, SourceLine
from thunder_core.frontend.acquire.outside.guards.containers import Absent
from thunder_core.frontend.acquire.outside.guards.guard import Guard
from thunder_core.frontend.acquire.outside.guards.identities import AllDifferent, TwoPathGuard
from thunder_core.frontend.acquire.outside.guards.tensors import TensorMetadata
from thunder_core.frontend.acquire.outside.guards.values import OfConstant
from thunder_core.frontend.acquire.outside.outside import Outside
from thunder_core.frontend.acquire.outside.paths import Path, leads_from_draw
from thunder_core.tracing.ir.constants import BY_IDENTITY, is_constant

COMPILE_TOGETHER = (
    "compile both functions with the same settings, so that one program contains them, or call one outside the other"
)


class Handover:
    """The reads and writes of an inner program, which a bound symbol of an outer program runs at `line`.

    The inner program reads and writes when this bound symbol runs. The outer program reads before its first bound
    symbol, and writes after its last bound symbol. Therefore, neither program may read or write an object that the
    other program writes to. `refuse(reason)` raises the error.
    """

    def __init__(
        self, outer: Outside, inner: Outside, line: SourceLine | None, refuse: Callable[[str], NoReturn]
    ) -> None:
        self._line = line
        self.outer = outer
        self.inner = inner
        self._refuse = refuse
        self._translations: dict[Path, Path | None] = {}

    def require_no_conflict(self) -> None:
        """Refuse random draws outside of PyTorch, and uses of objects that the outer program has written to.

        The objects that the inner program writes to are added to `outer.outdated`: the outer program may not use them
        later.
        """
        for path in self.used_paths():
            if leads_from_draw(path):
                self._refuse("draws random numbers outside of PyTorch, which a trace cannot repeat there")
            if self.is_changed(path):
                shown = self._outer_path(path) or path
                self._refuse(f"reads or writes {shown}, which the calling program has changed before")
        printed = any(effect.owner is None for effect in self.outer.effects.effects)  # a print has no owner
        for effect in self.inner.effects.effects:
            if effect.owner is None and printed:
                self._refuse("prints after the calling program has printed")
            if effect.owner is not None:
                self._forbid_later_uses(effect.owner)

    def has_conflict(self) -> bool:
        """Whether the inner program has effects, draws random numbers outside of PyTorch, or reads changed objects."""
        return bool(self.inner.effects.effects) or any(
            leads_from_draw(path) or self.is_changed(path) for path in self.used_paths()
        )

    def is_changed(self, path: Path) -> bool:
        """Whether the outer program, or another program that it calls, has already changed the value at a path."""
        owner, key = path.parent.value if path.parent is not None else None, path.key
        effects = self.outer.effects
        written = type(key) is str and (effects.has_written(owner, key) or effects.has_stored(owner, key))
        return written or self._is_changed_object(owner) or self._is_changed_object(path.value)

    def _is_changed_object(self, value: object) -> bool:
        return id(value) in self.outer.effects.originals or id(value) in self.outer.outdated

    def _forbid_later_uses(self, owner: Path) -> None:
        """Add to `outer.outdated` an object that the inner program writes to; refuse a tensor or a new object."""
        if isinstance(owner.value, torch.Tensor):
            self._refuse("sets an attribute of a tensor, or runs backward()")  # `backward` sets `.grad`
        if self.outer.path_of(owner.value) is None and self._outer_path(owner) is None:
            self._refuse(f"writes to {object_of_class(type(owner.value))} that the calling program creates")
        error = CannotReplay(
            f"a compiled function with its own settings, or a saved_tensors_hooks hook, writes to "
            f"{object_of_class(type(owner.value))}, and the program reads or writes it afterwards",
            fix=COMPILE_TOGETHER,
            where=self._line,
        )
        self.outer.forbid_use(owner.value, error)

    def written_path(self) -> Path | None:
        """Return the inner program's path to the first object that it writes to, or None."""
        return next((effect.owner for effect in self.inner.effects.effects if effect.owner is not None), None)

    def used_paths(self) -> Iterator[Path]:
        """Yield the paths of the inner program to all objects that it reads, guards or writes to."""
        yield from self.inner.paths.values()
        for guard in self.inner.guards.values():
            yield guard.path
        for effect in self.inner.effects.effects:
            if effect.owner is not None:
                yield effect.owner.attribute(effect.name, None) if effect.kind in ("set", "delete") else effect.owner

    def outer_path(self, path: Path) -> Path | None:
        """Return the outer program's path to the value at a path; None for a value that the outer program passes."""
        return self._outer_path(path)

    def guard(self) -> None:
        """Make the outer program guard the reads of the inner program."""
        for path in list(self.inner.paths.values()):
            translated = self._outer_path(path)
            if translated is not None and translated.parent is not None:
                self.outer.paths.setdefault(id(path.value), translated)
                self._note_outside_read(translated)
        for guard in list(self.inner.guards.values()):
            if isinstance(guard, TensorMetadata) or isinstance(guard.path.value, torch.Tensor):
                continue  # the calling program has its own guards for tensors
            outer_guard = self._translated_guard(guard)
            if outer_guard is None:
                continue
            if isinstance(guard, OfConstant):  # constants are not among `inner.paths`, so they are noted here
                self._note_outside_read(outer_guard.path)
            self._guard_outer(outer_guard)

    def _note_outside_read(self, path: Path) -> None:
        """Note a read of a functional program that does not lead from its arguments, except reads of code and cells."""
        if self.outer.outside_reads is not None and not isinstance(path.value, (*BY_IDENTITY, types.CellType)):
            self.outer.outside_reads.note(path)

    def _guard_outer(self, guard: Guard) -> None:
        if isinstance(guard, Absent):
            for name in guard.names:
                self.outer.guard_absence(guard.path, name)
        else:
            self.outer.guard(guard)

    def _translated_guard(self, guard: Guard) -> Guard | None:
        """Return the guard with paths of the outer program; None for a value that the outer program passes."""
        path = self._outer_path(guard.path)
        if isinstance(guard, AllDifferent):
            paths = [outer for inner in (guard.path, *guard.rest) if (outer := self._outer_path(inner)) is not None]
            return AllDifferent(paths[0], tuple(paths[1:])) if len(paths) > 1 else None
        if path is None or not isinstance(guard, TwoPathGuard):
            return None if path is None else replace(guard, path=path)
        second_path = self._outer_path(guard.second_path)
        return None if second_path is None else replace(guard, path=path, second_path=second_path)

    def _outer_path(self, path: Path) -> Path | None:
        """Return the outer program's path to the value at a path; None for a value that the outer program passes."""
        if path not in self._translations:
            self._translations[path] = self._translate(path)
        return self._translations[path]

    def _translate(self, path: Path) -> Path | None:
        outer_path = None if is_constant(path.value) else self.outer.path_of(path.value)
        if outer_path is not None:
            return outer_path
        if path.parent is None:
            # the root "root" is the inner program itself, with its arguments
            return None if path.step == "root" else self.outer.root(path.step, path.key, path.value)
        parent = self._outer_path(path.parent)
        if parent is None:
            return None
        key = self._outer_path(path.key) if isinstance(path.key, Path) else path.key
        return None if key is None and path.key is not None else parent.child(path.step, key, path.value)
