"""torch.Generator: the program's operations on generators are recorded, and tracing leaves all generators unchanged."""

from __future__ import annotations

import types
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import torch
from torch.utils._python_dispatch import _disable_current_modes

from thunder_core.foundation.errors import DataDependent
from thunder_core.frontend.acquire.lookaside_table import lookaside
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.observer import NOT_TAKEN
from thunder_core.tracing.capture.symbolic.numbers import SymbolicNumber, concrete
from thunder_core.tracing.ir.proxy import Proxy, TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol, Symbol

SEEDS = 2**64  # generators keep seeds as unsigned numbers of 64 bits
# Methods whose results are not known while tracing.
REFUSED = ("clone_state", "graphsafe_get_state", "graphsafe_set_state", "set_offset", "get_offset")


def symbol(name: str) -> Symbol:
    """Return the symbol of a method, or of the class."""
    return Symbol(f"torch.Generator{name}", getattr(torch.Generator, name[1:]) if name else torch.Generator)


@lookaside(torch.Generator)
def make_generator(run: TracedRun, /, *args: Any, **kwargs: Any) -> torch.Generator:
    """Record that the program creates a generator, which each call then creates."""
    new_generator = torch.Generator(*args, **kwargs)
    proxy = run.recorder.tensors.new_object_proxy(new_generator)
    run.recorder.emit(BoundSymbol(symbol(""), args, kwargs, proxy, ordered=True))
    run.calls.seeds[id(new_generator)] = new_generator.initial_seed()
    return new_generator


def method_of_generator(run: TracedRun, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Record a call of a bound method of a generator. Return `NOT_TAKEN` for a method whose result never changes."""
    method = METHODS.get(function.__name__)
    return NOT_TAKEN if method is None else method(run, function.__self__, *concrete(args), **concrete(kwargs))


def is_method_of_generator(function: object) -> bool:
    """Whether a function is a C method of a generator."""
    return type(function) is types.BuiltinMethodType and isinstance(function.__self__, torch.Generator)


def _record_method_call(
    run: TracedRun, name: str, generator: torch.Generator, *args: Any, output: Proxy | None = None
) -> None:
    proxy = run.recorder.tensors.object_proxy(generator)
    run.recorder.emit(BoundSymbol(symbol(f".{name}"), (proxy, *args), {}, output, ordered=True))


def _manual_seed(run: TracedRun, generator: torch.Generator, /, seed: int) -> torch.Generator:
    _record_method_call(run, "manual_seed", generator, seed)
    run.calls.seeds[id(generator)] = unsigned_seed(seed)
    return generator


def unsigned_seed(seed: Any) -> int | None:
    """Return the seed that a generator has after `manual_seed(seed)`; None for a number that varies between calls."""
    return None if isinstance(seed, SymbolicNumber) else int(seed) % SEEDS


def _set_state(run: TracedRun, generator: torch.Generator, /, state: torch.Tensor) -> torch.Generator:
    _record_method_call(run, "set_state", generator, run.recorder.proxy_of(state))
    run.calls.seeds[id(generator)] = None
    return generator


def _get_state(run: TracedRun, generator: torch.Generator, /) -> torch.Tensor:
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        size = generator.get_state().numel()
    proxy = TensorProxy(run.recorder.tensors.next_name(), (size,), (1,), torch.uint8, torch.device("cpu"))
    _record_method_call(run, "get_state", generator, output=proxy)
    with torch._C.DisableTorchFunction():
        state: torch.Tensor = run.recorder.tensors.new_tensor(proxy)
    return state


def _initial_seed(run: TracedRun, generator: torch.Generator, /) -> Any:
    if id(generator) not in run.calls.seeds:
        run.outside.guard_fact(generator, "initial_seed()", generator.initial_seed())
        return generator.initial_seed()
    seed = run.calls.seeds[id(generator)]
    return _unknown_number("initial_seed", run, generator) if seed is None else seed


def _seed(run: TracedRun, generator: torch.Generator, /) -> Any:
    run.calls.seeds[id(generator)] = None
    return _unknown_number("seed", run, generator)


def _unknown_number(name: str, run: TracedRun, generator: torch.Generator) -> SymbolicNumber:
    """Record a method that returns a number that each call computes."""
    number = run.recorder.numbers.new(int)
    _record_method_call(run, name, generator, output=number.proxy)
    return number


def _refuse(name: str, run: TracedRun, *args: Any) -> NoReturn:
    raise run.recorder.fail(
        DataDependent(
            f"`torch.Generator.{name}` returns a number that is not known while tracing",
            fix="use `manual_seed` with a fixed number, or call it outside the compiled program",
            where=run.location().source,
        )
    )


METHODS: dict[str, Callable[..., Any]] = {
    "manual_seed": _manual_seed,
    "seed": _seed,
    "set_state": _set_state,
    "get_state": _get_state,
    "initial_seed": _initial_seed,
    **{name: partial(_refuse, name) for name in REFUSED},
}
