"""torch.nn.Module: calls without hooks run `forward` directly, and attributes are read directly from their tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.modules.module as nn_module
from torch.jit import ScriptModule
from torch.nn import Module

from thunder_core.frontend.acquire.lookaside_table import lookaside
from thunder_core.frontend.acquire.lookasides.functions.script_modules import call_script_module
from thunder_core.frontend.acquire.lookasides.state.output_capturing import call_capturing_hooks
from thunder_core.frontend.acquire.outside.guards.classes import KeepsCall
from thunder_core.frontend.acquire.outside.guards.module_hooks import NoHooks, NoOtherHooks
from thunder_core.frontend.acquire.outside.guards.values import Truth
from thunder_core.frontend.acquire.outside.paths import MODULE_TABLES
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.lookup import python_method, type_lookup
from thunder_core.frontend.interpreter.observer import NOT_TAKEN
from thunder_core.tracing.library.capturing_hooks import HOOKS, is_capturing
from thunder_core.tracing.library.changes.class_entries import ABSENT
from thunder_core.tracing.library.changes.module_calls import OWN, keeps_methods

GLOBAL_HOOKS = (
    "_global_backward_pre_hooks",
    "_global_backward_hooks",
    "_global_forward_pre_hooks",
    "_global_forward_hooks",
)
CALL_METHODS = ("_call_impl", "_compiled_call_impl")
SETTERS = ("__set__", "__delete__")  # special methods of descriptors


@lookaside(Module.__call__, Module._wrapped_call_impl)
def call_module(run: TracedRun, module: object, /, *args: Any, **kwargs: Any) -> Any:
    """Record the module that runs, so that bound symbols have its name, and interpret `forward` and existing hooks.

    If the module has no hooks, the absence of hooks is guarded, and PyTorch's code that calls hooks is not interpreted.
    """
    if not isinstance(module, Module) or has_own_call(module):
        return NOT_TAKEN
    note_own_methods(run, module)
    run.modules.enter(run.modules.name_of(module) or str(run.outside.path_of(module) or type(module).__name__))
    try:
        if has_hooks(module):
            result = run.machine.call(Module._call_impl, module, *args, **kwargs)
            if any(map(is_capturing, module._forward_hooks.values())):
                return result
        else:
            note_absence_of_hooks(run, module)
            result = _call_forward(run, module, args, kwargs)
        call_capturing_hooks(run, module, args, result)
        return result
    finally:
        run.modules.leave()


def _call_forward(run: TracedRun, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if isinstance(module, ScriptModule):
        return call_script_module(run, module, args, kwargs)
    return run.machine.call(run.machine.load_attr(module, "forward"), *args, **kwargs)


def has_own_call(module: Module) -> bool:
    """Whether a module or its class replaces the method that calls hooks and `forward`."""
    replaced = any(vars(module).get(name) is not None for name in CALL_METHODS)
    return replaced or not keeps_methods(type(module), " ".join(CALL_METHODS))


def note_own_methods(run: TracedRun, module: Module) -> None:
    """Guard that a call of a module runs PyTorch's own methods."""
    kind, path = type(module), run.outside.path_of(module)
    if path is not None:
        for name in CALL_METHODS:
            if name in vars(module):
                run.outside.read(path.entry(name, None), None)
            else:
                run.outside.guard_absence(path.attribute("__dict__", vars(module)), name)
    if not run.outside.is_created_by_program(kind):
        names = [name for name in OWN if keeps_methods(kind, name)]
        run.outside.guard(KeepsCall(run.outside.root("class", kind.__name__, kind), tuple(names)))


def has_hooks(module: Module) -> bool:
    """Whether there are hooks to call around the module's `forward`, other than hooks that collect its outputs."""
    module_hooks = (hook for name in HOOKS for hook in getattr(module, name).values())
    return not all(map(is_capturing, module_hooks)) or any(getattr(nn_module, name) for name in GLOBAL_HOOKS)


def note_absence_of_hooks(run: TracedRun, module: Module) -> None:
    """Guard the absence of hooks, both of the module and global."""
    outside = run.outside
    path = outside.path_of(module)
    if path is not None:
        captures = id(module) in run.calls.capturing_hooks or module._forward_hooks
        outside.guard((NoOtherHooks if captures else NoHooks)(path))
        root = outside.globals_root(vars(nn_module))
        for name in GLOBAL_HOOKS:
            outside.guard(Truth(root.item(name, getattr(nn_module, name)), is_true=False))


@lookaside(Module.__getattr__)
def get_attribute(run: TracedRun, /, *args: Any) -> Any:
    """Read a parameter, a buffer or a submodule from its table.

    The caller guards the entry that was read. Here, the entry is guarded only if the module's class has its own
    `__getattr__`, which calls this method and may return another value.
    """
    if len(args) == 2 and type_lookup(type(args[0]), "__getattr__") is not Module.__getattr__:
        guard_tables(run, *args)
    return run.machine.call_uninterpreted(Module.__getattr__, args, {})


def guard_tables(run: TracedRun, module: Module, name: Any) -> None:
    """Guard the entries of a module's tables under a name, as `Module.__getattr__` looks them up."""
    path = run.outside.path_of(module)
    if path is None or run.outside.effects.has_written(module, name):
        return
    for table in MODULE_TABLES:
        entries = vars(module)[table]
        if name in entries:
            run.outside.read(path.entry(table, entries).item(name, entries[name]), entries[name])
            return
        run.outside.guard_absence(path.entry(table, entries), name)


@lookaside(Module.__setattr__)
def set_attribute(run: TracedRun, /, *args: Any) -> Any:
    """Log a write to a module's attribute as one effect, which covers all of the module's tables.

    Return `NOT_TAKEN` for an attribute with a setter in Python, which is interpreted.
    """
    if len(args) != 3 or run.outside.path_of(args[0]) is None or is_set_by_python(args[0], args[1]):
        return NOT_TAKEN
    owner, name, value = args
    run.writes.note_attribute_set(owner, name, value, level_of_module(owner, Module.__setattr__))
    return run.machine.call_uninterpreted(Module.__setattr__, args, {})


@lookaside(Module.__delattr__)
def delete_attribute(run: TracedRun, /, *args: Any) -> Any:
    """Log the deletion of a module's attribute as one effect.

    Return `NOT_TAKEN` for an attribute with a deleter in Python, which is interpreted.
    """
    if len(args) != 2 or run.outside.path_of(args[0]) is None or is_set_by_python(args[0], args[1]):
        return NOT_TAKEN
    owner, name = args
    run.writes.note_attribute_deletion(owner, name, level_of_module(owner, Module.__delattr__))
    return run.machine.call_uninterpreted(Module.__delattr__, args, {})


def is_set_by_python(module: Module, name: object) -> bool:
    """Whether the class of a module has a property or another descriptor in Python that sets or deletes this name."""
    unbound = type_lookup(type(module), name) if isinstance(name, str) else ABSENT
    return isinstance(unbound, property) or any(python_method(type(unbound), special) for special in SETTERS)


def level_of_module(module: Module, function: Callable[..., Any]) -> type | None:
    """Return `Module` if the class of a module overrides this method of Module, and otherwise None."""
    return None if type_lookup(type(module), function.__name__) is function else Module
