"""Draw random numbers from generators outside PyTorch: prologues draw them from the program's own generators."""

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
    """The draws of one call of a compiled function (the `subject`), and the generators' states before the draws."""

    def __init__(self, subject: Any = None) -> None:
        self.subject = subject
        self.fresh: list[tuple[FreshCall, Any]] = []  # results of calls that read the operating system's randomness
        self._restores: dict[int, Restore] = {}

    def draw(self, generator: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of a generator. Before the generator's first draw, save its state."""
        self.keep(generator)
        return getattr(generator, method)(*args, **kwargs)

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function that draws from the process's own generators, or creates a generator."""
        for generator in process_generators():
            self.keep(generator)
        return function(*args, **kwargs)

    def apply(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function on drawn values."""
        return function(*args, **kwargs)

    def error_of(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
        """Return the class name of the error that a call raises, or an empty string if it raises none."""
        try:
            function(*args, **kwargs)
        except Exception as error:
            return type(error).__name__
        return ""

    def method(self, owner: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of a drawn value."""
        return getattr(owner, name)(*args, **kwargs)

    def shuffle_copy(self, generator: Any, items: Any) -> Any:
        """Return a copy of a list or an array, shuffled by a generator."""
        self.keep(generator)
        copied = copy.copy(items)
        generator.shuffle(copied)
        return copied

    def write_to_copy(self, name: str, array: Any, *args: Any) -> Any:
        """Call a writing method on a copy of an array, and return the copy."""
        copied = array.copy()
        getattr(copied, name)(*args)
        return copied

    def keep(self, generator: object) -> None:
        """Save the state of a generator, unless it was already saved."""
        if id(generator) not in self._restores:
            self._restores[id(generator)] = restore_of(generator)

    def put_back(self) -> None:
        """Restore the states of the generators before the first draw."""
        for restore in reversed(self._restores.values()):
            restore()


def file_state(name: Any) -> str:
    """Return the identity, size and times of a file, which differ after a change of the file."""
    state = os.stat(name)  # noqa: PTH116
    return f"{state.st_dev} {state.st_ino} {state.st_size} {state.st_mtime_ns} {state.st_ctime_ns}"


class Fresh:
    """Replaces a function that reads the operating system's random numbers; the first call returns the traced value."""

    def __init__(self, function: Callable[..., Any], value: Any) -> None:
        self.__name__ = getattr(function, "__name__", "draw")
        self._function = function
        self._first = [value]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the traced value at the first call, and an unused or new value at later calls (`fresh_value`)."""
        value = self._first.pop() if self._first else fresh_value(self._function, args, kwargs)
        if PENDING.draws:
            PENDING.draws[-1].fresh.append(((self._function, args, kwargs), value))
        return value


def call_key(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Hashable:
    """Return the key of a call of a function that reads the operating system's randomness."""
    return function, repr(args), repr(kwargs)


def fresh_value(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return an unused value of a function that reads the operating system's random numbers, or call the function.

    If the guards of a program fail, its draws are unused, and the next program or tracing uses them. Without this
    reuse, each program would draw new numbers until its guards hold, so that branches on these numbers would be taken
    with other probabilities than in eager PyTorch.
    """
    left_values = PENDING.unused and PENDING.unused.get(call_key(function, args, kwargs))
    return left_values.pop(0) if left_values else function(*args, **kwargs)


def process_generators() -> list[Any]:
    """Return the generators of the functions of `random` and, if it was imported, of `numpy.random`."""
    numpy = sys.modules.get("numpy.random")
    return [random._inst, *([] if numpy is None else [numpy.mtrand._rand])]


def restore_of(generator: Any) -> Restore:
    """Return a function that restores a generator's present state; the operating system's generator has no state."""
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
    state_of_bits = bits.state

    def restore() -> None:
        bits.state = state_of_bits

    return restore


class Pending(threading.local):
    """The draws of a thread in calls that no program has accepted yet, innermost call last."""

    def __init__(self) -> None:
        self.draws: list[Draws] = []
        self.unused: dict[Hashable, list[Any]] = {}  # draws of programs that refused the call


PENDING = Pending()


def begin_draws(subject: object) -> Draws:
    """Begin the draws of a call of a compiled function or module."""
    draws = Draws(subject)
    PENDING.draws.append(draws)
    return draws


def settle_draws(subject: object = None) -> None:
    """Accept the draws of the innermost call, because a program has accepted the call; check `subject` if given."""
    if PENDING.draws and (subject is None or PENDING.draws[-1].subject is subject):
        PENDING.draws.pop()


def take_back_draws(subject: object) -> None:
    """Restore the generators, because a program of the subject has refused the call after drawing from them."""
    if PENDING.draws and PENDING.draws[-1].subject is subject:
        draws = PENDING.draws.pop()
        draws.put_back()
        for call, value in draws.fresh:
            PENDING.unused.setdefault(call_key(*call), []).append(value)


def forget_left_draws() -> None:
    """Discard unused draws at the end of the call, so that the next call draws its own numbers."""
    PENDING.unused.clear()
