"""The hooks with which models of transformers collect hidden states and attentions, called as if installed.

The library installs the hooks at the first call that requests such outputs, and sets a flag. If a compiled program
installed them, its guards would fail at the second call, because the model would have changed. So tracing calls the
hooks, and leaves the model unchanged.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch.nn import Module

from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.tracing.library.capturing_hooks import FLAG, LIBRARY, is_capturing

INSTALLER = (LIBRARY, "maybe_install_capturing_hooks")

Hooks = dict[int, list[Callable[..., Any]]]


def record_hooks(run: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Make the run call the hooks after the modules on which the library would install them."""
    for module_id, hooks in hooks_of(*args, **kwargs).items():
        run.calls.capturing_hooks.setdefault(module_id, hooks)


def hooks_of(model: Module) -> Hooks:
    """Return the hooks by the `id` of their modules.

    If the library had not installed the hooks before, this function installs them, and then removes them again.
    """
    library = sys.modules[LIBRARY]
    with library._hook_installation_lock:
        if getattr(model, FLAG, False):
            return present_hooks(model)
        before = {id(module): set(module._forward_hooks) for module in model.modules()}
        flagged = [module for module in model.modules() if FLAG in vars(module)]
        library.install_all_output_capturing_hooks(model)
        hooks = present_hooks(model, before)
        for module in model.modules():
            for number in set(module._forward_hooks) - before[id(module)]:
                del module._forward_hooks[number]
            if FLAG in vars(module) and all(module is not flagged_module for flagged_module in flagged):
                delattr(module, FLAG)
    return hooks


def present_hooks(model: Module, before: dict[int, set[int]] | None = None) -> Hooks:
    """Return the installed hooks that collect outputs, except those in `before`."""
    hooks: Hooks = {}
    for module in model.modules():
        previous = (before or {}).get(id(module), ())
        for number, hook in module._forward_hooks.items():
            if is_capturing(hook) and number not in previous:
                hooks.setdefault(id(module), []).append(hook)
    return hooks


def call_capturing_hooks(run: TracedRun, module: Module, args: tuple[Any, ...], output: object) -> None:
    """Call the hooks of a module after its forward, as PyTorch would."""
    for hook in run.calls.capturing_hooks.get(id(module), ()):
        run.machine.call(hook, module, args, output)
