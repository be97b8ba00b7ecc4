"""Random numbers from elsewhere than PyTorch, drawn by prologues from the generators that the program draws from."""

from __future__ import annotations

import copy
import os
import random
import sys
import threading
from collections.abc import Callable, Hashable, Mapping
from typing import Any

Restore = Callable[[], object]
FreshCall = tuple[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]]


class Draws:
    """The draws of one call of a subject, and the states of generators before them."""

    def __init__(self, subject: Any = None) -> None:
        self.subject = subject
        self.fresh: list[tuple[FreshCall, Any]] = []  # what the operating system gave, each with its call
        self._restores: dict[int, Restore] = {}

    def draw(self, generator: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of a generator, whose state is kept before its first draw."""
        self.keep(generator)
        return getattr(generator, method)(*args, **kwargs)

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function that draws from the process's own generators, or makes a generator."""
        for generator in process_generators():
            self.keep(generator)
        return function(*args, **kwargs)

    def apply(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function of what was drawn."""
        return function(*args, **kwargs)

    def error_of(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
        """The name of the class of the error that a call raises; an empty text where it raises none."""
        try:
            function(*args, **kwargs)
        except Exception as error:
            return type(error).__name__
        return ""

    def method(self, owner: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of what was drawn."""
        return getattr(owner, name)(*args, **kwargs)

    def shuffled(self, generator: Any, items: Any) -> Any:
        """A copy of a list or an array, which a generator has shuffled."""
        self.keep(generator)
        copied = copy.copy(items)
        generator.shuffle(copied)
        return copied

    def written(self, name: str, array: Any, *args: Any) -> Any:
        """A copy of an array, on which a method that writes to it was called."""
        copied = array.copy()
        getattr(copied, name)(*args)
        return copied

    def keep(self, generator: Any) -> None:
        """Keep the state of a generator, unless this was done already."""
        if id(generator) not in self._restores:
            self._restores[id(generator)] = restore_of(generator)

    def put_back(self) -> None:
        """Make the generators what they were before the first draw."""
        for restore in reversed(self._restores.values()):
            restore()


def file_state(name: Any) -> str:
    """The number, size and times of a file, by which a changed file is told from what it was."""
    state = os.stat(name)  # noqa: PTH116
    return f"{state.st_dev} {state.st_ino} {state.st_size} {state.st_mtime_ns} {state.st_ctime_ns}"


class Fresh:
    """A function that draws from the operating system: its first call gives what it gave while tracing."""

    def __init__(self, function: Callable[..., Any], value: Any) -> None:
        self.__name__ = getattr(function, "__name__", "draw")
        self._function = function
        self._first = [value]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function, unless the value from tracing, or of a program that refused the call, is still there."""
        value = self._first.pop() if self._first else fresh_value(self._function, args, kwargs)
        if PENDING.draws:
            PENDING.draws[-1].fresh.append(((self._function, args, kwargs), value))
        return value


def call_key(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Hashable:
    """The key of a call of a function that draws from the operating system."""
    return function, repr(args), repr(kwargs)


def fresh_value(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Call a function that draws from the operating system, once in a call of a compiled function.

    A program that refuses a call leaves what it has drawn to the next one, and to tracing. Otherwise, a branch on a
    drawn number would be taken more often than in eager: by each program that draws until the number is one for it.
    """
    left = PENDING.left and PENDING.left.get(call_key(function, args, kwargs))
    return left.pop(0) if left else function(*args, **kwargs)


def process_generators() -> list[Any]:
    """The generators behind the functions of `random` and of `numpy.random`, if that was imported."""
    numpy = sys.modules.get("numpy.random")
    return [random._inst, *([] if numpy is None else [numpy.mtrand._rand])]


def restore_of(generator: Any) -> Restore:
    """A function that puts a generator back to its present state; one of the operating system has none."""
    if isinstance(generator, random.SystemRandom):
        return lambda: None
    if isinstance(generator, random.Random):
        state = generator.getstate()
        return lambda: generator.setstate(state)
    if hasattr(generator, "set_state"):
        legacy = generator.get_state(legacy=False)
        return lambda: generator.set_state(legacy)
    bits = getattr(generator, "bit_generator", generator)
    if not hasattr(bits, "state"):
        return lambda: None
    kept = bits.state

    def restore() -> None:
        bits.state = kept

    return restore


class Pending(threading.local):
    """The draws of the calls of a thread that have not come to their epilogues, the innermost last."""

    def __init__(self) -> None:
        self.draws: list[Draws] = []
        self.left: dict[Hashable, list[Any]] = {}  # what programs have drawn that refused the call


PENDING = Pending()


def begin_draws(subject: Any) -> Draws:
    """The draws of a call of a compiled function or module, which begin here."""
    draws = Draws(subject)
    PENDING.draws.append(draws)
    return draws


def settle_draws(subject: Any = None) -> None:
    """A program has taken the call, one of the subject if that is told: what it drew is drawn."""
    if PENDING.draws and (subject is None or PENDING.draws[-1].subject is subject):
        PENDING.draws.pop()


def take_back_draws(subject: Any) -> None:
    """A program of the subject has not taken the call: the generators are what they were before it drew from them."""
    if PENDING.draws and PENDING.draws[-1].subject is subject:
        draws = PENDING.draws.pop()
        draws.put_back()
        for call, value in draws.fresh:
            PENDING.left.setdefault(call_key(*call), []).append(value)


def forget_left_draws() -> None:
    """The call has ended: the next one draws its own numbers."""
    PENDING.left.clear()
