"""Calls that draw random numbers outside of PyTorch: `random`, `numpy.random`, `uuid`, `secrets`, `os`."""

from __future__ import annotations

import _random
import random
import secrets
import sys
import uuid
from collections.abc import Callable
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any

from thunder_core.frontend.acquire.lookasides.table import lookaside
from thunder_core.frontend.acquire.outside.call_traits import is_fixed
from thunder_core.frontend.acquire.outside.draws import NotReplayedError, code_of_module
from thunder_core.frontend.acquire.outside.reductions import is_of
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.tracing.capture.symbolic.numbers import concrete

# Functions that get random numbers from the operating system, and are called again at each call.
FRESH = (
    *(uuid.uuid1, uuid.uuid4),
    *(secrets.token_bytes, secrets.token_hex, secrets.token_urlsafe, secrets.randbelow, secrets.randbits),
)
NUMPY = ("seed", "get_state", "set_state", "ranf", "sample", "default_rng")  # functions of `numpy.random`
STATES = ("get_state", "ranf", "sample")  # the functions of these that draw when called without an argument
PYTHON_CLASSES = (random.Random, random.SystemRandom)


@lookaside(*FRESH)
def fresh_numbers(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any] | None:
    """Get random numbers from the operating system at each call."""
    if acquisition.outside.surprises is not None:
        return None
    draw = acquisition.draws.fresh
    return lambda *args, **kwargs: replayed(acquisition, function, (args, kwargs), draw, function, args, kwargs)


def drawing_call(acquisition: TracedRun, function: Any) -> Callable[..., Any] | None:
    """Return the replacement of a function that draws, a generator's method or class; None for other functions."""
    kind = type(function)
    if acquisition.draws.functions and code_of(function) in acquisition.draws.functions:
        return whole_call(acquisition, function)
    if kind is FunctionType:
        return None
    if kind is MethodType or kind is BuiltinMethodType:
        return method_that_draws(acquisition, function, function.__self__)
    if not is_drawing_function(function, kind) or acquisition.outside.surprises is not None:
        return None
    return lambda *args, **kwargs: called(acquisition, function, args, kwargs)


def code_of(function: Any) -> Any:
    """Return the code of a function or of a bound method; None for other callables."""
    return getattr(getattr(function, "__func__", function), "__code__", None)


def method_that_draws(acquisition: TracedRun, function: Any, owner: Any) -> Callable[..., Any] | None:
    """Return the replacement of a bound method of a generator."""
    if not is_generator(owner) or not is_own_method(function, owner) or acquisition.outside.surprises is not None:
        return None
    name = function.__name__
    is_systems = isinstance(owner, random.SystemRandom)
    stand_in = ON_ITEMS.get(name)

    def draw(*args: Any, **kwargs: Any) -> Any:
        if stand_in is not None:
            return stand_in(acquisition, owner, function, args, kwargs)
        if kwargs.get("out") is not None or name == "spawn":
            return replayed(acquisition, function, (args, kwargs), not_replayed)
        if is_systems:
            return replayed(acquisition, function, (args, kwargs), acquisition.draws.fresh, function, args, kwargs)
        if name == "seed" and next(iter((*args, *kwargs.values())), None) is None:
            args, kwargs = (acquisition.draws.fresh(secrets.randbits, (32,), {}),), {}
        return replayed(acquisition, function, (args, kwargs), acquisition.draws.draw, owner, name, args, kwargs)

    return draw


def whole_call(acquisition: TracedRun, function: Any) -> Callable[..., Any]:
    """Return the replacement of a program's function that draws: the prologue calls it if it knows the arguments."""

    def run(*args: Any, **kwargs: Any) -> Any:
        if acquisition.draws.knows_arguments(args, kwargs):
            return acquisition.draws.call(function, args, kwargs)
        return acquisition.machine.invoke_quietly(function, args, kwargs)

    return run


def called(acquisition: TracedRun, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function that draws or makes a generator. Without a seed, the operating system provides the numbers."""
    seed = next(iter((*args, *kwargs.values())), None)
    is_fresh = seed is None and function.__name__ not in STATES
    draw = acquisition.draws.fresh if is_fresh else acquisition.draws.call
    if is_fresh and function.__name__ == "seed":
        return called(acquisition, function, (acquisition.draws.fresh(secrets.randbits, (32,), {}),), {})
    return replayed(acquisition, function, (args, kwargs), draw, function, args, kwargs)


def numpy_random() -> Any:
    """Return the module `numpy.random`; None if it has not been imported."""
    return sys.modules.get("numpy.random")


def is_drawing_function(function: Any, kind: type) -> bool:
    """Whether a class makes generators, or a function of `numpy.random` draws or makes a generator."""
    numpy = numpy_random()
    if kind is type:
        of_numpy = () if numpy is None else (*numpy_generators(numpy), numpy.SeedSequence)
        return function in PYTHON_CLASSES or (bool(of_numpy) and issubclass(function, of_numpy))
    drawing = () if numpy is None or getattr(function, "__module__", "") != numpy.__name__ else NUMPY
    return any(function is getattr(numpy, name) for name in drawing)


def numpy_generators(numpy: Any) -> tuple[type, ...]:
    """Return the classes of NumPy's generators."""
    return numpy.RandomState, numpy.Generator, numpy.BitGenerator


def is_generator(value: Any) -> bool:
    """Whether a value is a random number generator of Python or NumPy."""
    if isinstance(value, _random.Random):
        return True
    numpy = numpy_random()
    return numpy is not None and isinstance(value, numpy_generators(numpy))


def is_own_method(function: Any, owner: Any) -> bool:
    """Whether a method is defined by the generator's module, and may be called as it is."""
    name = getattr(function, "__name__", "_")
    return not name.startswith("_") and (not isinstance(owner, _random.Random) or code_of_module(function, "random"))


def not_replayed() -> Any:
    """Refuse a draw whose arguments the prologue does not know."""
    raise NotReplayedError


def replayed(acquisition: TracedRun, function: Any, original: Any, draw: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a draw that the prologue repeats. If the prologue cannot, the draw is a loud sharp edge."""
    try:
        return draw(*arguments)
    except NotReplayedError:
        acquisition.note_edge(
            f"randomness outside torch: {function.__qualname__} is not called again by later calls", loud=True
        )
        return acquisition.machine.natively(function, *original)


# ---- random items: the prologue draws their positions ------------------------------------------------------------


def _choice(acquisition: TracedRun, owner: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`choice(sequence)`: a number if all items are numbers of one class, otherwise the item at a guarded position."""
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


def _sample(acquisition: TracedRun, owner: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`sample(population, k)` and `choices(population, ...)`: the items at random positions."""
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


def _shuffle(acquisition: TracedRun, owner: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`shuffle(items)`: the items in a random order, which is guarded unless they are numbers of one class."""
    items = args[0] if len(args) == 1 and not kwargs else None
    if is_of(type(items), "numpy.ndarray"):
        shuffled = replayed(acquisition, function, (args, kwargs), acquisition.draws.shuffled, owner, items)
        return None if shuffled is None else acquisition.machine.store_item(items, ..., shuffled)
    if type(items) is not list:
        return replayed(acquisition, function, (args, kwargs), not_replayed)
    acquisition.machine.announce_iteration(items)
    items_or_positions = list(items) if are_numbers(items) else list(range(len(items)))
    order = replayed(acquisition, function, (args, kwargs), acquisition.draws.shuffled, owner, items_or_positions)
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
