"""Calls that draw random numbers from elsewhere than PyTorch: `random`, `numpy.random`, `uuid`, `secrets`, `os`."""

from __future__ import annotations

import _random
import os
import random
import secrets
import sys
import uuid
from collections.abc import Callable
from typing import Any

from thunder_core.acquire.call_traits import is_fixed
from thunder_core.acquire.draws import NotReplayedError, code_of_module
from thunder_core.acquire.reductions import is_of
from thunder_core.capture.numbers import concrete

GENERATORS = (
    "numpy.random.mtrand.RandomState",
    "numpy.random._generator.Generator",
    "numpy.random.bit_generator.BitGenerator",
)
MAKING = (*GENERATORS, "numpy.random.bit_generator.SeedSequence")
# Functions that draw from the operating system, or the like: called again at each call.
FRESH = (
    *(uuid.uuid1, uuid.uuid4, os.urandom, os.getrandom if hasattr(os, "getrandom") else os.urandom),
    *(secrets.token_bytes, secrets.token_hex, secrets.token_urlsafe, secrets.randbelow, secrets.randbits),
)
NUMPY = ("seed", "get_state", "set_state", "ranf", "sample", "default_rng")  # functions of `numpy.random`
STATES = ("get_state", "ranf", "sample")  # of these, those that draw without an argument


def drawing_call(acquisition: Any, function: Any) -> Callable[..., Any] | None:
    """The stand-in of a function that draws, of a method of a generator, or of a generator's class; None for others."""
    if acquisition.outside.surprises is not None:
        return None
    inner = getattr(function, "__func__", function)
    if acquisition.draws.functions and getattr(inner, "__code__", None) in acquisition.draws.functions:
        return whole_call(acquisition, function)
    if is_drawing_function(function):
        return lambda *args, **kwargs: called(acquisition, function, args, kwargs)
    owner = getattr(function, "__self__", None)
    if not is_generator(owner) or not is_own_method(function, owner):
        return None
    name = function.__name__
    is_systems = isinstance(owner, random.SystemRandom)
    stand_in = ON_ITEMS.get(name)

    def draw(*args: Any, **kwargs: Any) -> Any:
        if stand_in is not None:
            return stand_in(acquisition, owner, function, args, kwargs)
        if kwargs.get("out") is not None:
            return replayed(acquisition, function, (args, kwargs), not_replayed)
        if is_systems:
            return replayed(acquisition, function, (args, kwargs), acquisition.draws.fresh, function, args, kwargs)
        if name == "seed" and next(iter((*args, *kwargs.values())), None) is None:
            args, kwargs = (acquisition.draws.fresh(secrets.randbits, (32,), {}),), {}
        return replayed(acquisition, function, (args, kwargs), acquisition.draws.draw, owner, name, args, kwargs)

    return draw


def whole_call(acquisition: Any, function: Any) -> Callable[..., Any]:
    """The stand-in of a function of the program that draws: the prologue calls it, if it knows the arguments."""

    def run(*args: Any, **kwargs: Any) -> Any:
        if acquisition.draws.takes(args, kwargs):
            return acquisition.draws.call(function, args, kwargs)
        return acquisition.machine.invoke_quietly(function, args, kwargs)

    return run


def called(acquisition: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function that draws, or makes a generator: by the operating system's numbers where it has no seed."""
    seed = next(iter((*args, *kwargs.values())), None)
    is_fresh = any(function is one for one in FRESH) or (seed is None and function.__name__ not in STATES)
    draw = acquisition.draws.fresh if is_fresh else acquisition.draws.call
    if is_fresh and function.__name__ == "seed":
        return called(acquisition, function, (acquisition.draws.fresh(secrets.randbits, (32,), {}),), {})
    return replayed(acquisition, function, (args, kwargs), draw, function, args, kwargs)


def is_drawing_function(function: Any) -> bool:
    """Whether a function without an owner draws, or makes a generator."""
    if isinstance(function, type):
        return function in (random.Random, random.SystemRandom) or any(is_of(function, kind) for kind in MAKING)
    numpy = sys.modules.get("numpy.random")
    drawing = [] if numpy is None else [getattr(numpy, name) for name in NUMPY]
    return any(function is one for one in (*FRESH, *drawing))


def is_generator(value: Any) -> bool:
    """Whether a value is a generator of random numbers of Python's or of NumPy's."""
    return isinstance(value, _random.Random) or any(is_of(type(value), kind) for kind in GENERATORS)


def is_own_method(function: Any, owner: Any) -> bool:
    """Whether a method is one that the generator's module defines, which may be called as it is."""
    name = getattr(function, "__name__", "_")
    return not name.startswith("_") and (not isinstance(owner, _random.Random) or code_of_module(function, "random"))


def not_replayed() -> Any:
    """Refuse a draw whose arguments a prologue does not know."""
    raise NotReplayedError


def replayed(acquisition: Any, function: Any, original: Any, draw: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a draw that the prologue makes again; where the prologue cannot, that is a loud sharp edge."""
    try:
        return draw(*arguments)
    except NotReplayedError:
        acquisition.note_edge(f"randomness outside torch: {function.__qualname__}, which is not drawn anew", loud=True)
        return acquisition.machine.natively(function, *original)


# ---- draws of items: the prologue draws their places --------------------------------------------------------------


def _choice(acquisition: Any, owner: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`choice(sequence)`: a number if all items are numbers of one class, else the item at a place that is guarded."""
    sequence = args[0] if len(args) == 1 and not kwargs else None
    if not isinstance(owner, _random.Random) or type(sequence) not in (list, tuple, str) or not sequence:
        return replayed(acquisition, function, (args, kwargs), acquisition.draws.draw, owner, "choice", args, kwargs)
    if are_numbers(sequence):
        return replayed(
            acquisition, function, (args, kwargs), acquisition.draws.draw, owner, "choice", (tuple(sequence),), {}
        )
    place = replayed(
        acquisition, function, (args, kwargs), acquisition.draws.draw, owner, "choice", (range(len(sequence)),), {}
    )
    return acquisition.machine.load_item(sequence, concrete(place))


def _sample(acquisition: Any, owner: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`sample(population, k)` and `choices(population, ...)`: the items at drawn places."""
    name = function.__name__
    population: Any = args[0] if args else None
    draw = acquisition.draws.draw
    if not isinstance(owner, _random.Random) or type(population) not in (list, tuple) or "counts" in kwargs:
        return replayed(acquisition, function, (args, kwargs), draw, owner, name, args, kwargs)
    if are_numbers(population):
        return replayed(
            acquisition, function, (args, kwargs), draw, owner, name, (tuple(population), *args[1:]), kwargs
        )
    places = replayed(
        acquisition, function, (args, kwargs), draw, owner, name, (range(len(population)), *args[1:]), kwargs
    )
    return [acquisition.machine.load_item(population, concrete(place)) for place in places]


def _shuffle(acquisition: Any, owner: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`shuffle(items)`: the items in a drawn order, which is guarded unless they are numbers of one class."""
    items = args[0] if len(args) == 1 and not kwargs else None
    if is_of(type(items), "numpy.ndarray"):
        shuffled = replayed(acquisition, function, (args, kwargs), acquisition.draws.shuffled, owner, items)
        return None if shuffled is None else acquisition.machine.store_item(items, ..., shuffled)
    if type(items) is not list:
        return replayed(acquisition, function, (args, kwargs), not_replayed)
    acquisition.machine.announce_iteration(items)
    drawn = list(items) if are_numbers(items) else list(range(len(items)))
    order = replayed(acquisition, function, (args, kwargs), acquisition.draws.shuffled, owner, drawn)
    shuffled = order if are_numbers(items) else [items[concrete(place)] for place in order]
    acquisition.machine.store_item(items, slice(None), shuffled)
    return None


def are_numbers(items: Any) -> bool:
    """Whether all items are plain numbers of one class."""
    return (
        type(items) in (list, tuple)
        and bool(items)
        and is_fixed(tuple(items))
        and {*map(type, items)} in ({int}, {float})
    )


ON_ITEMS: dict[str, Callable[..., Any]] = {
    "choice": _choice,
    "sample": _sample,
    "choices": _sample,
    "shuffle": _shuffle,
}
