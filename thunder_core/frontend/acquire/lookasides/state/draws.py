"""Calls that draw random numbers outside of PyTorch: `random`, `numpy.random`, `uuid`, `secrets`, `os`."""

from __future__ import annotations

import _random
import random
import secrets
import uuid
from collections.abc import Callable
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any

from thunder_core.frontend.acquire.lookaside_table import lookaside_of_each
from thunder_core.frontend.acquire.outside.call_traits import is_fixed
from thunder_core.frontend.acquire.outside.drawing_functions import is_generator, numpy_generators, numpy_random
from thunder_core.frontend.acquire.outside.draws import NotReplayedError, is_defined_by_module
from thunder_core.frontend.acquire.outside.reductions import derives_from
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.callables import callable_attribute
from thunder_core.frontend.interpreter.observer import NOT_TAKEN
from thunder_core.tracing.capture.symbolic.numbers import concrete

# Functions that get random numbers from the operating system. The prologue calls them at each call.
OS_RANDOM_FUNCTIONS = (
    *(uuid.uuid1, uuid.uuid4),
    *(secrets.token_bytes, secrets.token_hex, secrets.token_urlsafe, secrets.randbelow, secrets.randbits),
)
# Functions of `numpy.random` that draw, seed or make a generator.
NUMPY_RANDOM_FUNCTIONS = ("seed", "get_state", "set_state", "ranf", "sample", "default_rng")
FUNCTIONS_WITHOUT_SEED = ("get_state", "ranf", "sample")  # of these: the functions that have no parameter for a seed
PYTHON_CLASSES = (random.Random, random.SystemRandom)


@lookaside_of_each(*OS_RANDOM_FUNCTIONS)
def draw_from_os(function: Callable[..., Any], run: TracedRun, /, *args: Any, **kwargs: Any) -> Any:
    """Call a function that gets random numbers from the operating system, as the prologue does at each call."""
    if run.outside.is_functional:
        return NOT_TAKEN
    return replay(run, function, (args, kwargs), run.draws.call_fresh, function, args, kwargs)


def call_random_function(run: TracedRun, function: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function that draws random numbers, a method of a generator, or the class of a generator.

    The prologue repeats the call. Return `NOT_TAKEN` for other functions.
    """
    kind = type(function)
    if run.draws.functions and code_of(function) in run.draws.functions:
        return call_drawing_code(run, function, args, kwargs)
    if kind is FunctionType:
        return NOT_TAKEN
    if kind is MethodType or kind is BuiltinMethodType:
        return call_drawing_method(run, function, args, kwargs)
    if not is_drawing_function(function, kind) or run.outside.is_functional:
        return NOT_TAKEN
    return call_drawing(run, function, args, kwargs)


def code_of(function: object) -> Any:
    """Return the code of a function or of a bound method; None for other callables."""
    return getattr(callable_attribute(function, "__func__", function), "__code__", None)


def call_drawing_method(run: TracedRun, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a bound method of a generator, which the prologue repeats; return `NOT_TAKEN` for other methods."""
    owner = function.__self__
    if not is_generator(owner) or not is_own_method(function, owner) or run.outside.is_functional:
        return NOT_TAKEN
    name = function.__name__
    if name in METHODS_ON_ITEMS:
        return METHODS_ON_ITEMS[name](run, owner, function, args, kwargs)
    if kwargs.get("out") is not None or name == "spawn":
        return replay(run, function, (args, kwargs), refuse_replay)
    if isinstance(owner, random.SystemRandom):
        return replay(run, function, (args, kwargs), run.draws.call_fresh, function, args, kwargs)
    if name == "seed" and next(iter((*args, *kwargs.values())), None) is None:
        args, kwargs = (run.draws.call_fresh(secrets.randbits, (32,), {}),), {}
    return replay(run, function, (args, kwargs), run.draws.draw, owner, name, args, kwargs)


def call_drawing_code(run: TracedRun, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function of the program that draws random numbers.

    The prologue repeats the call if it can pass the arguments. A list or dict is not passed, because the function could
    write to it.
    """
    if not has_mutable_container((args, kwargs)) and run.draws.can_pass_arguments(args, kwargs):
        try:
            return run.draws.call_drawing_function(function, args, kwargs)
        except NotReplayedError:  # its result has a tensor
            return run.machine.invoke_quietly(function, args, kwargs)
    return run.machine.invoke_quietly(function, args, kwargs)


def has_mutable_container(call: tuple[tuple[Any, ...], dict[str, Any]]) -> bool:
    """Whether the arguments of a call contain a list or a dict, also within tuples."""
    args, kwargs = call
    values = [*args, *kwargs.values()]
    return any(
        type(value) in (list, dict) or (type(value) is tuple and has_mutable_container((value, {}))) for value in values
    )


def call_drawing(run: TracedRun, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function that draws or makes a generator. Without a seed, the operating system provides the numbers."""
    seed = next(iter((*args, *kwargs.values())), None)
    is_fresh = seed is None and function.__name__ not in FUNCTIONS_WITHOUT_SEED
    draw = run.draws.call_fresh if is_fresh else run.draws.call_drawing_function
    if is_fresh and function.__name__ == "seed":
        return call_drawing(run, function, (run.draws.call_fresh(secrets.randbits, (32,), {}),), {})
    return replay(run, function, (args, kwargs), draw, function, args, kwargs)


def is_drawing_function(function: Any, kind: type) -> bool:
    """Whether a class makes generators, or a function of `numpy.random` draws or makes a generator."""
    numpy = numpy_random()
    if kind is type:
        of_numpy = () if numpy is None else (*numpy_generators(numpy), numpy.SeedSequence)
        return function in PYTHON_CLASSES or (bool(of_numpy) and issubclass(function, of_numpy))
    drawing = (
        ()
        if numpy is None or callable_attribute(function, "__module__", "") != numpy.__name__
        else NUMPY_RANDOM_FUNCTIONS
    )
    return any(function is getattr(numpy, name) for name in drawing)


def is_own_method(function: object, owner: object) -> bool:
    """Whether a method is defined by the generator's module, and may be called as it is."""
    name = callable_attribute(function, "__name__", "_")
    return not name.startswith("_") and (
        not isinstance(owner, _random.Random) or is_defined_by_module(function, "random")
    )


def refuse_replay() -> Any:
    """Raise `NotReplayedError` for a draw that the prologue cannot repeat."""
    raise NotReplayedError


def replay(run: TracedRun, function: Any, original: Any, draw: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a draw that the prologue repeats; report a loud sharp edge if it cannot repeat the draw."""
    try:
        return draw(*arguments)
    except NotReplayedError:
        run.note_edge(
            f"randomness outside torch: {function.__qualname__} is not called again by later calls", loud=True
        )
        return run.machine.call_unreported(function, *original)


# ---- random items: the prologue draws their positions ------------------------------------------------------------


def _choice(run: TracedRun, owner: object, function: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return `choice(sequence)`: a symbolic number for numbers of one class, else the item at a guarded position."""
    sequence = args[0] if len(args) == 1 and not kwargs else None
    if not isinstance(owner, _random.Random) or type(sequence) not in (list, tuple, str) or not sequence:
        return replay(run, function, (args, kwargs), run.draws.draw, owner, "choice", args, kwargs)
    if are_numbers(sequence):
        run.outside.expand(sequence)
        return replay(run, function, (args, kwargs), run.draws.draw, owner, "choice", (tuple(sequence),), {})
    run.machine.call(len, sequence)
    positions = (range(len(sequence)),)

    def draw_item() -> Any:
        return run.machine.load_item(sequence, concrete(run.draws.draw(owner, "choice", positions, {})))

    return replay(run, function, (args, kwargs), draw_item)


def _sample(run: TracedRun, owner: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return `sample(population, k)` or `choices(population, ...)`.

    The items are symbolic numbers if the population has numbers of one class, and otherwise the items at guarded
    positions.
    """
    name = function.__name__
    population: Any = args[0] if args else None
    draw = run.draws.draw
    if not isinstance(owner, _random.Random) or type(population) not in (list, tuple) or "counts" in kwargs:
        return replay(run, function, (args, kwargs), draw, owner, name, args, kwargs)
    if are_numbers(population):
        run.outside.expand(population)
        return replay(run, function, (args, kwargs), draw, owner, name, (tuple(population), *args[1:]), kwargs)
    run.machine.call(len, population)
    positions = range(len(population))

    def draw_items() -> list[Any]:
        indices = draw(owner, name, (positions, *args[1:]), kwargs)
        return [run.machine.load_item(population, concrete(index)) for index in indices]

    return replay(run, function, (args, kwargs), draw_items)


def _shuffle(run: TracedRun, owner: object, function: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run `shuffle(items)`. The random order is guarded, unless the items are numbers of one class or an array."""
    items = args[0] if len(args) == 1 and not kwargs else None
    if derives_from(type(items), "numpy.ndarray"):
        shuffled = replay(run, function, (args, kwargs), run.draws.shuffle, owner, items)
        return None if shuffled is None else run.machine.store_item(items, ..., shuffled)
    if type(items) is not list:
        return replay(run, function, (args, kwargs), refuse_replay)
    run.machine.announce_iteration(items)
    items_or_positions = list(items) if are_numbers(items) else list(range(len(items)))
    try:
        order = run.draws.shuffle(owner, items_or_positions)
    except NotReplayedError:
        return replay(run, function, (args, kwargs), refuse_replay)
    shuffled = order if are_numbers(items) else [items[concrete(index)] for index in order]
    run.machine.store_item(items, slice(None), shuffled)
    return None


def are_numbers(items: Any) -> bool:
    """Whether all items are plain numbers of one class."""
    return (
        type(items) in (list, tuple)
        and bool(items)
        and is_fixed(tuple(items))
        and {*map(type, items)} in ({int}, {float})
    )


METHODS_ON_ITEMS: dict[str, Callable[..., Any]] = {
    "choice": _choice,
    "sample": _sample,
    "choices": _sample,
    "shuffle": _shuffle,
}
