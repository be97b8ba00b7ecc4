"""Probes of a model and of the process: hooks, classes and functions of modules, modes, and settings of PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from thunder_core.backend.runtime.program import Program
from thunder_core.tracing.ir.default_dtype import default_dtype
from thunder_core.workflow.fault_localization.probes.calls import SubjectCall
from thunder_core.workflow.fault_localization.probes.path_probes import object_at, run_another
from thunder_core.workflow.fault_localization.probes.probe import Probe

Change = Callable[[], AbstractContextManager[Any]]


def model_probes(program: Program, call: SubjectCall) -> Iterator[Probe]:
    """Yield probes that give each module a hook, another `forward` or another class, and a probe that switches the
    model's mode.
    """
    model = call.subject
    if not isinstance(model, torch.nn.Module):
        return
    names = guarded_modules(program, call)
    for name, module in model.named_modules():
        path = names.get(id(module), f"module.{name}".rstrip("."))
        arguments = call.copy_arguments
        yield Probe(f"a hook of {path}", arguments, add_hook(module), path, "hooks")
        yield Probe(f"another {path}.forward", arguments, replace_forward(module), f"{path}.__dict__", "'forward'")
        if module is not model:  # a compiled callable is bound to the model, so the class of the model needs no guard
            yield Probe(f"{path} of another class", arguments, replace_class(module), path, "was a")
    for kind in dict.fromkeys(map(type, model.modules())):
        where = f"{kind.__name__}.forward"
        yield Probe(f"another {where}", call.copy_arguments, replace_class_forward(kind), where)
    mode = "eval" if model.training else "train"
    yield Probe(f"the model in {mode} mode", call.copy_arguments, switch_mode(model))


def guarded_modules(program: Program, call: SubjectCall) -> dict[int, str]:
    """Return the names that guards use for modules, by id."""
    objects = (
        (guard.path, object_at(guard.plain_path, call)) for guard in program.guards if guard.plain_path is not None
    )
    names = {id(value): path for path, value in objects if isinstance(value, torch.nn.Module)}
    return {**names, id(call.subject): "module"}


def process_probes(call: SubjectCall) -> Iterator[Probe]:
    """Yield probes that change settings of PyTorch."""
    for path, change in SETTINGS.items():
        yield Probe(f"another {path}", call.copy_arguments, change(), path)


def change_default_dtype() -> AbstractContextManager[None]:
    """Return a context with another default dtype."""
    return default_dtype(torch.float64 if torch.get_default_dtype() != torch.float64 else torch.float32)


def switch_autocast() -> AbstractContextManager[Any]:
    """Return a context that disables autocast on the CPU if it is enabled, and enables it otherwise."""
    return torch.autocast("cpu", torch.bfloat16, enabled=not torch.is_autocast_enabled("cpu"))


SETTINGS: Mapping[str, Change] = {
    "torch.is_grad_enabled()": lambda: torch.set_grad_enabled(not torch.is_grad_enabled()),
    "torch.is_inference_mode_enabled()": lambda: torch.inference_mode(not torch.is_inference_mode_enabled()),
    "torch.get_default_dtype()": change_default_dtype,
    'torch.is_autocast_enabled("cpu")': switch_autocast,
}


@contextmanager
def add_hook(module: torch.nn.Module) -> Iterator[None]:
    """Register a hook that raises an error on a module while the block runs."""
    handle = module.register_forward_hook(run_another)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def replace_forward(module: torch.nn.Module) -> Iterator[None]:
    """Give a module its own `forward`, which raises an error, while the block runs."""
    before = vars(module).get("forward")
    vars(module)["forward"] = run_another
    try:
        yield
    finally:
        del vars(module)["forward"]
        vars(module).update({} if before is None else {"forward": before})


@contextmanager
def replace_class(module: torch.nn.Module) -> Iterator[None]:
    """Give a module another class, whose `forward` raises an error, while the block runs."""
    kind = type(module)
    module.__class__ = type(kind.__name__, (kind,), {"forward": run_another})
    try:
        yield
    finally:
        module.__class__ = kind


@contextmanager
def replace_class_forward(kind: Any) -> Iterator[None]:
    """Give a class of modules another `forward`, which raises an error, while the block runs."""
    before = vars(kind).get("forward")
    kind.forward = run_another
    try:
        yield
    finally:
        if before is None:
            del kind.forward
        else:
            kind.forward = before


@contextmanager
def switch_mode(model: torch.nn.Module) -> Iterator[None]:
    """Switch a model between eval and train mode while the block runs."""
    modes = [(module, module.training) for module in model.modules()]
    model.train(not model.training)
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
