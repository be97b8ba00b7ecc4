"""State of the process: autocast, inference mode, settings, and seeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from thunder_core.frontend.acquire.lookaside_table import lookaside, lookaside_of_each
from thunder_core.frontend.acquire.lookasides.functions.generators import unsigned_seed
from thunder_core.frontend.acquire.run.drawn_arrays import with_symbolic_scalars
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.tracing.capture.symbolic.numbers import concrete, to_proxies
from thunder_core.tracing.capture.torch_facts.settings import GETTERS, SETTERS
from thunder_core.tracing.capture.torch_facts.switches import AUTOCAST
from thunder_core.tracing.capture.torch_facts.symbols import symbol_of
from thunder_core.tracing.ir.proxy import Proxy
from thunder_core.tracing.ir.symbol import BoundSymbol


@lookaside_of_each(*AUTOCAST)
def set_autocast(function: Callable[..., Any], run: TracedRun, /, *args: Any, **kwargs: Any) -> Any:
    """Record a change of autocast's state as a bound symbol, because the following operations depend on it."""
    args, kwargs = concrete((args, kwargs))
    result = function(*args, **kwargs)
    run.recorder.emit(BoundSymbol(symbol_of(function), args, kwargs, None, ordered=True))
    run.settings.note_autocast_change()
    return result


@lookaside_of_each(torch.get_autocast_dtype, torch.is_autocast_cache_enabled)
def ask_autocast(function: Callable[..., Any], run: TracedRun, /, *args: Any) -> Any:
    """Guard a setting of autocast that the program reads, unless the program itself has changed autocast."""
    return function(*args) if run.settings.has_changed_autocast else run.settings.ask(function, *args)


@lookaside_of_each(*SETTERS)
def change_setting(function: Callable[..., Any], run: TracedRun, /, *args: Any, **kwargs: Any) -> None:
    """Record a change of a process setting as a bound symbol. Changes made while tracing are undone."""
    setting = SETTERS[function]
    args, kwargs = concrete((args, kwargs))
    if setting.answers is None:
        run.outside.effects.add_undo(setting.keep())
        function(*args, **kwargs)
    run.settings.change(setting, args, kwargs)
    run.recorder.emit(BoundSymbol(symbol_of(function), args, kwargs, None, ordered=True))


@lookaside_of_each(*GETTERS)
def ask_setting(function: Callable[..., Any], run: TracedRun, /, *args: Any) -> Any:
    """Guard a setting that the program reads, unless the program itself has changed the setting."""
    return run.settings.ask(function, *args)


@lookaside(torch.inference_mode.__enter__)
def enter_inference_mode(run: TracedRun, /, context: torch.inference_mode) -> None:
    """Record the start of inference mode, with a context that belongs to the trace."""
    torch.inference_mode.__enter__(context)
    recorder = run.recorder
    name = Proxy(recorder.tensors.next_name())
    run.calls.contexts[id(context)] = (context, name)
    recorder.emit(BoundSymbol(symbol_of(torch.inference_mode), (context.mode,), {}, name, ordered=True))
    recorder.emit(BoundSymbol(symbol_of(torch.inference_mode.__enter__), (name,), {}, None, ordered=True))


@lookaside(torch.inference_mode.__exit__)
def exit_inference_mode(run: TracedRun, /, context: torch.inference_mode, *raised: Any) -> None:
    """Record the end of inference mode."""
    torch.inference_mode.__exit__(context, *raised)
    _, name = run.calls.contexts.pop(id(context))
    exit_symbol = symbol_of(torch.inference_mode.__exit__)
    run.recorder.emit(BoundSymbol(exit_symbol, (name, None, None, None), {}, None, ordered=True))


@lookaside(torch.seed)
def seed(run: TracedRun, /) -> Any:
    """Record seeding with a number that is unknown while tracing."""
    number = run.recorder.numbers.new(int)
    run.recorder.emit(BoundSymbol(symbol_of(torch.seed), (), {}, number.proxy, ordered=True))
    run.calls.seeds[id(torch.default_generator)] = None
    return number


@lookaside(torch.manual_seed)
def manual_seed(run: TracedRun, /, *args: Any, **kwargs: Any) -> torch.Generator:
    """Record seeding as a bound symbol. Tracing leaves the generators unchanged.

    A random NumPy scalar becomes the number that the prologue draws.
    """
    args, kwargs = with_symbolic_scalars(run, (args, kwargs))
    run.calls.seeds[id(torch.default_generator)] = unsigned_seed(next(iter((*args, *kwargs.values())), 0))
    args, kwargs = to_proxies((args, kwargs))
    run.recorder.emit(BoundSymbol(symbol_of(torch.manual_seed), args, kwargs, None, ordered=True))
    return torch.default_generator


@lookaside_of_each(torch.cuda.device_count, torch.cuda.is_available, torch.xpu.device_count, torch.xpu.is_available)
def ask_for_devices(function: Callable[..., Any], run: TracedRun, /) -> Any:
    """Return the number of devices, or whether there are any, without guards: neither changes within a process.

    If PyTorch's code were interpreted, its cache of the number would be guarded.
    """
    return function()
