"""Gradients of outside tensors: reads of `.grad` and hooks are guarded, and changes of `.grad` are effects."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import torch
from torch.autograd.graph import Node, get_gradient_edge
from torch.utils._python_dispatch import _disable_current_modes

from thunder_core.foundation.errors import OperationFailed
from thunder_core.frontend.acquire.held_objects import is_held
from thunder_core.frontend.acquire.outside.guards.tensors import NoAccumulationHooks
from thunder_core.frontend.acquire.outside.recording import Recording
from thunder_core.passes.autodiff.decompose_autocast import with_autocast_off
from thunder_core.tracing.analysis.own_derivatives import has_derivative_rule
from thunder_core.tracing.capture.gradients import OutsideFacts
from thunder_core.tracing.capture.torch_facts.autocast import AUTOCAST_DEVICES
from thunder_core.tracing.capture.torch_facts.leaf_hooks import Hooks
from thunder_core.tracing.capture.torch_facts.symbols import SET_GRAD, as_bound_symbol, symbol_of
from thunder_core.tracing.ir.proxy import Proxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.library.changes.node_hooks import has_hooks

# Symbols that affect a later backward pass. They are left out if the program has run its backward passes itself.
BACKWARD_REQUESTS = frozenset(
    {
        "torch.Tensor.retain_grad",
        "torch.Tensor.register_hook",
        "torch.Tensor.register_post_accumulate_grad_hook",
    }
)


class OutsideGradients(OutsideFacts):
    """The gradients and hooks of outside tensors. Each read is guarded."""

    def __init__(self, run: Recording) -> None:
        self.run = run

    def gradient(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return a tensor's `.grad`, and guard that it is None or guard its metadata."""
        grad: torch.Tensor | None = tensor.grad
        self._guard_read(tensor, "grad", grad)
        return grad

    def require_leaf(self, tensor: torch.Tensor) -> None:
        """Guard that a tensor is a leaf and that its accumulation node has no hooks.

        A Parameter is always a leaf. Raises `OperationFailed` for a tensor that was computed outside the program.
        """
        with torch._C.DisableTorchFunction():
            if tensor.grad_fn is not None:
                raise OperationFailed(
                    "backward() would have to continue outside the program, where an input was computed",
                    fix="compile that part too, or call backward() outside the program",
                    where=self.run.location().source,
                )
            if not isinstance(tensor, torch.nn.Parameter):
                self._guard_read(tensor, "grad_fn", None)
            self._require_no_accumulation_hooks(tensor)

    def _require_no_accumulation_hooks(self, leaf: torch.Tensor) -> None:
        """Guard that the accumulation node of a leaf has no hooks.

        If it has hooks, request that eager makes the call.
        """
        with _disable_current_modes():
            node = get_gradient_edge(leaf).node if leaf.requires_grad else None
        if node is None:
            return
        if has_hooks(node):
            self.run.leave_to_eager(
                f"the node that accumulates the gradient of a tensor of shape {list(leaf.shape)} had hooks "
                "before the program, which cannot be traced",
                "call backward() outside the program, or register the hooks on the tensor",
            )
        self.run.outside.guard_together(NoAccumulationHooks, leaf)

    def require_alive(self, nodes: Iterable[Node]) -> None:
        """Leave the call to eager PyTorch if no variable of the program refers to one of these accumulation nodes with
        hooks.

        Eager PyTorch frees such a node together with the last graph that leads to it. A later graph has a new node,
        without these hooks.
        """
        if not all(is_held(self.run.machine.frame, node) for node in nodes):
            self.run.leave_to_eager(
                "the program registers a hook on a node that accumulates a gradient, and holds the node no longer",
                "keep the node in a variable, or register the hook on the tensor",
            )

    def hooks(self, tensor: torch.Tensor) -> Hooks:
        """Guard the hooks of a tensor, and return functions that interpret them."""
        with torch._C.DisableTorchFunction():
            return Hooks(
                self._guarded_hooks(tensor, "_backward_hooks"),
                self._guarded_hooks(tensor, "_post_accumulate_grad_hooks"),
            )

    def _guarded_hooks(self, tensor: torch.Tensor, name: str) -> list[Any]:
        hooks = getattr(tensor, name)
        self._guard_read(tensor, name, hooks)
        self.run.outside.expand(hooks)
        return [functools.partial(self.run.machine.call, hook) for hook in (hooks or {}).values()]

    def _guard_read(self, tensor: torch.Tensor, name: str, value: object) -> None:
        path = self.run.outside.path_of(tensor)
        if path is not None:
            self.run.outside.read(path.attribute(name, value), value)


def log_gradients(run: Recording) -> None:
    """Log each change of a `.grad` of an outside tensor as an effect.

    Raises `OperationFailed` for a tensor without a path. Requests that eager PyTorch makes the call if the tensor then
    got another shape or dtype: PyTorch refuses the gradient at the end of the call.
    """
    for tensor, grad in run.recorder.gradients.changed_gradients():
        if run.outside.path_of(tensor) is None:
            raise OperationFailed(
                f"the program changes the gradient of a tensor of shape {list(tensor.shape)}, which the "
                "next call cannot find",
                fix="pass the tensor as an argument, or keep it in a module or a variable that the program reads",
            )
        if grad is not None and _has_outgrown(run, tensor, run.recorder.tensors.fake(grad)):
            run.leave_to_eager(
                f"the program sets the gradient of a tensor of shape {list(tensor.shape)}, and then its data to a "
                "tensor of another shape or dtype",
                "set the gradient to None before changing the tensor",
            )
        run.writes.note_attribute_set(tensor, "grad", grad)


def _has_outgrown(run: Recording, tensor: torch.Tensor, grad: torch.Tensor) -> bool:
    """Whether the program has given a tensor another shape or dtype than that of its gradient."""
    fake, before = run.recorder.tensors.fake(tensor), run.recorder.tensors.inputs[id(tensor)][1]
    if fake.shape == before.shape and fake.dtype is before.dtype:
        return False
    return bool(fake.shape != grad.shape or fake.dtype is not grad.dtype)


def expose_intermediates(bsyms: Iterable[BoundSymbol], outputs: Iterable[Proxy]) -> tuple[BoundSymbol, ...]:
    """Return the bound symbols; decompose each bound symbol of which an intermediate is an output or is used by
    another.

    A backward pass of the program uses tensors that forward operations saved, and autocast reuses tensors that it has
    cast before.
    """
    bsyms = tuple(bsyms)
    autocast_devices = autocast_devices_of(bsyms)
    defined = {proxy.name for bsym in bsyms for proxy in bsym.outputs}
    read = {proxy.name for proxy in outputs}
    decomposed: list[BoundSymbol] = []
    for bsym in reversed(bsyms):
        names = [proxy.name for part in bsym.subsymbols for proxy in part.outputs]
        parts = [bsym]
        if any(name in read and name not in defined for name in names):
            parts = [as_bound_symbol(part, bsym) for part in bsym.subsymbols]
            if has_derivative_rule(bsym):  # its operations run with autocast off
                parts = [*with_autocast_off(parts, autocast_devices.get(id(bsym), ()))]
        read |= {proxy.name for part in parts for proxy in part.inputs}
        decomposed += reversed(parts)
    return tuple(reversed(decomposed))


def autocast_devices_of(bsyms: Iterable[BoundSymbol]) -> dict[int, tuple[str, ...]]:
    """Map each bound symbol with a derivative rule, by identity, to the devices for which autocast is on."""
    on = {device: torch.is_autocast_enabled(device) for device in AUTOCAST_DEVICES}
    devices: dict[int, tuple[str, ...]] = {}
    for bsym in bsyms:
        if bsym.symbol.target is torch.set_autocast_enabled and len(bsym.args) == 2:
            on[bsym.args[0]] = bsym.args[1]
        elif has_derivative_rule(bsym):
            devices[id(bsym)] = tuple(device for device, enabled in on.items() if enabled)
    return devices


def without_autograd(bsyms: Iterable[BoundSymbol], ambient: bool) -> tuple[BoundSymbol, ...]:
    """Return the bound symbols of a program that computes its gradients itself, with autograd off for all of them.

    `ambient` is whether autograd is on when the program is called.
    """
    bsyms_kept = (
        bsym for bsym in bsyms if bsym.symbol.target is not SET_GRAD and bsym.symbol.name not in BACKWARD_REQUESTS
    )
    return (_set_grad_enabled(False), *bsyms_kept, _set_grad_enabled(True)) if ambient else tuple(bsyms_kept)


def _set_grad_enabled(enabled: bool) -> BoundSymbol:
    """Return the bound symbol that turns autograd on or off."""
    return BoundSymbol(symbol_of(SET_GRAD), (enabled,), {}, None, ordered=True)
