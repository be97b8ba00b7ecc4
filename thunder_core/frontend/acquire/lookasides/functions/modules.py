"""torch.nn.Module: calls without hooks go straight to `forward`, attributes straight to their tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.modules.module as nn_module
from torch.nn import Module

from thunder_core.frontend.acquire.lookasides.state.output_capturing import call_capturing_hooks
from thunder_core.frontend.acquire.lookasides.table import lookaside
from thunder_core.frontend.acquire.outside.guards import Truth
from thunder_core.frontend.acquire.outside.object_guards import NoHooks, NoOtherHooks
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.lookup import type_lookup
from thunder_core.tracing.library.capturing_hooks import HOOKS, is_capturing

GLOBAL_HOOKS = (
    "_global_backward_pre_hooks",
    "_global_backward_hooks",
    "_global_forward_pre_hooks",
    "_global_forward_hooks",
)


@lookaside(Module.__call__, Module._wrapped_call_impl)
def call_module(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any] | None:
    """Note which module is running and, where no hook wants to know, interpret `forward` alone."""
    module = args[0]

    def run(module: Module, *args: Any, **kwargs: Any) -> Any:
        path = acquisition.outside.path_of(module)
        acquisition.modules.append(acquisition.module_names.get(id(module)) or str(path or type(module).__name__))
        try:
            return call(module, *args, **kwargs)
        finally:
            acquisition.modules.pop()

    def call(module: Module, *args: Any, **kwargs: Any) -> Any:
        if has_hooks(module):
            result = acquisition.machine.call(Module._call_impl, module, *args, **kwargs)
            if any(map(is_capturing, module._forward_hooks.values())):
                return result
        else:
            note_absence_of_hooks(acquisition, module)
            forward = acquisition.machine.load_attr(module, "forward")
            result = acquisition.machine.call(forward, *args, **kwargs)
        call_capturing_hooks(acquisition, module, args, result)
        return result

    return run if isinstance(module, Module) and module._compiled_call_impl is None else None


def has_hooks(module: Module) -> bool:
    """Whether anything is to be called around the module's `forward`, but for hooks that collect its outputs."""
    own = (hook for name in HOOKS for hook in getattr(module, name).values())
    return not all(map(is_capturing, own)) or any(getattr(nn_module, name) for name in GLOBAL_HOOKS)


def note_absence_of_hooks(acquisition: TracedRun, module: Module) -> None:
    """Guard that no hook is there, neither the module's own nor one for all modules."""
    outside = acquisition.outside
    path = outside.path_of(module)
    if path is not None:
        captures = id(module) in acquisition.capturing_hooks or module._forward_hooks
        outside.guard((NoOtherHooks if captures else NoHooks)(path))
        root = outside.globals_root(vars(nn_module))
        for name in GLOBAL_HOOKS:
            outside.guard(Truth(root.item(name, getattr(nn_module, name)), is_true=False))


@lookaside(Module.__getattr__)
def get_attribute(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any]:
    """Parameters, buffers and submodules are read from their tables; the read itself is announced by its reader."""
    return function


@lookaside(Module.__setattr__)
def set_attribute(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any] | None:
    """A write to a module is logged as a whole, whichever of its tables it ends in."""
    if len(args) != 3 or acquisition.outside.path_of(args[0]) is None:
        return None
    owner, name, value = args
    acquisition.writes.set_attribute(owner, name, value, level_of_module(owner, function))
    return function


@lookaside(Module.__delattr__)
def delete_attribute(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any] | None:
    """The deletion of a module's attribute is logged as a whole."""
    if len(args) != 2 or acquisition.outside.path_of(args[0]) is None:
        return None
    owner, name = args
    acquisition.writes.delete_attribute(owner, name, level_of_module(owner, function))
    return function


def level_of_module(module: Module, function: Callable[..., Any]) -> type | None:
    """`Module`, where the class of a module overrides this method of Module's."""
    return None if type_lookup(type(module), function.__name__) is function else Module
