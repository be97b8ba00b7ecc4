"""torch.Generator: the program's operations on generators are recorded, and tracing leaves all generators unchanged."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from thunder_core.foundation.errors import DataDependent
from thunder_core.frontend.acquire.lookasides.table import lookaside
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.tracing.ir.proxy import Proxy, TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol, Symbol

Method = Callable[..., Any]


def symbol(name: str) -> Symbol:
    """Return the symbol of a method, or of the class."""
    return Symbol(f"torch.Generator{name}", getattr(torch.Generator, name[1:]) if name else torch.Generator)


@lookaside(torch.Generator)
def make_generator(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any]:
    """Record that the program creates a generator, which each call then creates."""

    def run(*args: Any, **kwargs: Any) -> torch.Generator:
        new_generator: torch.Generator = function(*args, **kwargs)
        proxy = acquisition.recorder.tensors.made_object(new_generator)
        acquisition.recorder.emit(BoundSymbol(symbol(""), args, kwargs, proxy, ordered=True))
        acquisition.seeds[id(new_generator)] = new_generator.initial_seed()
        return new_generator

    return run


def method_of_generator(acquisition: TracedRun, function: Any) -> Method | None:
    """Return the replacement of a bound method of a generator; None for a method whose result never changes."""
    replacement = METHODS.get(function.__name__)
    return None if replacement is None else replacement(acquisition, function.__self__)


def is_method_of_generator(function: Any) -> bool:
    """Whether a function is a C method of a generator."""
    return type(function) is types.BuiltinMethodType and isinstance(function.__self__, torch.Generator)


def _emit(
    acquisition: TracedRun, name: str, generator: torch.Generator, *args: Any, output: Proxy | None = None
) -> None:
    proxy = acquisition.recorder.tensors.object(generator)
    acquisition.recorder.emit(BoundSymbol(symbol(f".{name}"), (proxy, *args), {}, output, ordered=True))


def _manual_seed(acquisition: TracedRun, generator: torch.Generator) -> Method:
    def run(seed: int) -> torch.Generator:
        _emit(acquisition, "manual_seed", generator, seed)
        acquisition.seeds[id(generator)] = seed
        return generator

    return run


def _set_state(acquisition: TracedRun, generator: torch.Generator) -> Method:
    def run(state: torch.Tensor) -> torch.Generator:
        _emit(acquisition, "set_state", generator, acquisition.recorder.proxy_of(state))
        acquisition.seeds[id(generator)] = None
        return generator

    return run


def _get_state(acquisition: TracedRun, generator: torch.Generator) -> Method:
    def run() -> torch.Tensor:
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            size = generator.get_state().numel()
        proxy = TensorProxy(acquisition.recorder.tensors.next_name(), (size,), (1,), torch.uint8, torch.device("cpu"))
        _emit(acquisition, "get_state", generator, output=proxy)
        with torch._C.DisableTorchFunction():
            state: torch.Tensor = acquisition.recorder.tensors.made_tensor(proxy)
        return state

    return run


def _initial_seed(acquisition: TracedRun, generator: torch.Generator) -> Method:
    def run() -> int:
        if id(generator) not in acquisition.seeds:
            acquisition.outside.asked(generator, "initial_seed()", generator.initial_seed())
            return generator.initial_seed()
        seed = acquisition.seeds[id(generator)]
        return _refused(acquisition, "initial_seed") if seed is None else int(seed)

    return run


def _seed(acquisition: TracedRun, generator: torch.Generator) -> Method:
    def run() -> Any:
        number = acquisition.recorder.numbers.new(int)
        _emit(acquisition, "seed", generator, output=number.proxy)
        acquisition.seeds[id(generator)] = None
        return number

    return run


def _refusing(name: str) -> Callable[[Any, torch.Generator], Method]:
    return lambda acquisition, generator: lambda *args: _refused(acquisition, name)


def _refused(acquisition: TracedRun, name: str) -> Any:
    acquisition.recorder.failure = DataDependent(
        f"`torch.Generator.{name}` returns a number that is not known while tracing",
        fix="use `manual_seed` with a fixed number, or call it outside the compiled program",
        where=acquisition.place().source,
    )
    raise acquisition.recorder.failure


METHODS: dict[str, Callable[[Any, torch.Generator], Method]] = {
    "manual_seed": _manual_seed,
    "seed": _seed,
    "set_state": _set_state,
    "get_state": _get_state,
    "initial_seed": _initial_seed,
    **{name: _refusing(name) for name in ("clone_state", "graphsafe_get_state", "graphsafe_set_state")},
    **{name: _refusing(name) for name in ("set_offset", "get_offset")},
}
