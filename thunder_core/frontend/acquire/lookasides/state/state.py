"""State of the process: autocast, inference mode, settings, and seeds."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from thunder_core.frontend.acquire.lookasides.table import lookaside
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.tracing.capture.symbolic.numbers import concrete, to_proxies
from thunder_core.tracing.capture.torch_facts.settings import GETTERS, SETTERS
from thunder_core.tracing.capture.torch_facts.switches import AUTOCAST
from thunder_core.tracing.capture.torch_facts.symbols import symbol_of
from thunder_core.tracing.ir.proxy import Proxy
from thunder_core.tracing.ir.symbol import BoundSymbol


@lookaside(*AUTOCAST)
def set_autocast(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any]:
    """Record a change of autocast's state as a bound symbol, because the following operations depend on it."""

    def run(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = concrete((args, kwargs))
        result = function(*args, **kwargs)
        acquisition.recorder.emit(BoundSymbol(symbol_of(function), args, kwargs, None, ordered=True))
        acquisition.settings.has_changed_autocast = True
        return result

    return run


@lookaside(torch.get_autocast_dtype, torch.is_autocast_cache_enabled)
def ask_autocast(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any]:
    """Guard a setting of autocast that the program reads, unless the program itself has changed autocast."""

    def run(*args: Any) -> Any:
        return (
            function(*args) if acquisition.settings.has_changed_autocast else acquisition.settings.ask(function, *args)
        )

    return run


@lookaside(*SETTERS)
def change_setting(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any]:
    """Record a change of a process setting as a bound symbol. Changes made while tracing are undone."""
    setting = SETTERS[function]

    def run(*args: Any, **kwargs: Any) -> None:
        args, kwargs = concrete((args, kwargs))
        if setting.answers is None:
            acquisition.outside.effects.set_process(setting.keep())
            function(*args, **kwargs)
        acquisition.settings.change(setting, args, kwargs)
        acquisition.recorder.emit(BoundSymbol(symbol_of(function), args, kwargs, None, ordered=True))

    return run


@lookaside(*GETTERS)
def ask_setting(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any]:
    """Guard a setting that the program reads, unless the program itself has changed the setting."""
    return functools.partial(acquisition.settings.ask, function)


@lookaside(torch.inference_mode.__enter__)
def enter_inference_mode(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any]:
    """Record the start of inference mode, with a context that belongs to the trace."""

    def run(context: torch.inference_mode) -> None:
        function(context)
        recorder = acquisition.recorder
        name = Proxy(recorder.tensors.next_name())
        acquisition.contexts[id(context)] = (context, name)
        recorder.emit(BoundSymbol(symbol_of(torch.inference_mode), (context.mode,), {}, name, ordered=True))
        recorder.emit(BoundSymbol(symbol_of(function), (name,), {}, None, ordered=True))

    return run


@lookaside(torch.inference_mode.__exit__)
def exit_inference_mode(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any]:
    """Record the end of inference mode."""

    def run(context: torch.inference_mode, *raised: Any) -> None:
        function(context, *raised)
        _, name = acquisition.contexts.pop(id(context))
        bsym = BoundSymbol(symbol_of(function), (name, None, None, None), {}, None, ordered=True)
        acquisition.recorder.emit(bsym)

    return run


@lookaside(torch.seed)
def seed(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any]:
    """Record seeding with a number that is unknown while tracing."""

    def run() -> Any:
        number = acquisition.recorder.numbers.new(int)
        acquisition.recorder.emit(BoundSymbol(symbol_of(function), (), {}, number.proxy, ordered=True))
        return number

    return run


@lookaside(torch.manual_seed)
def manual_seed(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any]:
    """Record seeding as a bound symbol. Tracing leaves the generators unchanged."""

    def run(*args: Any, **kwargs: Any) -> torch.Generator:
        args, kwargs = to_proxies((args, kwargs))
        acquisition.recorder.emit(BoundSymbol(symbol_of(function), args, kwargs, None, ordered=True))
        return torch.default_generator

    return run


@lookaside(torch.cuda.device_count, torch.cuda.is_available, torch.xpu.device_count, torch.xpu.is_available)
def ask_for_devices(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any]:
    """Return the devices of the process, which do not change. PyTorch's cache of their number is not guarded."""
    return functools.partial(function)
