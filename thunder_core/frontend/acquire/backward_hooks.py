"""The backward hooks of a program: the computation registers them, and the epilogue sets their functions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.graph import Node, register_multi_grad_hook

from thunder_core.foundation.errors import OperationFailed
from thunder_core.frontend.acquire.outside.recording import Recording
from thunder_core.tracing.capture.recorder import Recorder
from thunder_core.tracing.capture.torch_facts.autograd_nodes import tensor_and_steps_to
from thunder_core.tracing.capture.torch_facts.symbols import symbol_of
from thunder_core.tracing.ir.proxy import Proxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.library.backward_hooks import (
    Hook,
    node_at,
    register_hook_of_node,
    register_hook_of_several,
    register_hook_of_tensor,
    remove_hook,
    set_function,
)


class BackwardHooks:
    """Registers hooks on fakes and on their nodes, for backward passes that the program runs itself.

    Each hook also has a bound symbol in the computation, which registers a hook for backward passes after the program.
    The epilogue sets the function of that hook, because the function may close over values that the program computes.
    """

    def __init__(self, run: Recording) -> None:
        self._run = run
        self._kept: list[Any] = []  # handles and hooks, compared by identity

    def on_tensor(self, method: str, tensor: torch.Tensor, function: Callable[..., Any]) -> Any:
        """Register a hook of a tensor with one of the tensor's methods, and return the handle."""
        fake = self._recorder.tensors.fake(tensor)
        with torch._C.DisableTorchFunction():
            hook = Hook(function)
            handle = getattr(fake, method)(self._recording_hook(hook))
        self._record(register_hook_of_tensor, (self._recorder.tensors.proxy(fake), method), handle, hook)
        return handle

    def on_node(self, method: str, node: Node, function: Callable[..., Any]) -> Any:
        """Register a hook of an autograd node with one of the node's methods, and return the handle."""
        proxy = self._proxy_of(node)
        hook = Hook(function)
        handle = getattr(node, method)(self._recording_hook(hook))
        self._recorder.gradients.accumulation_hooks.note(node, method, handle)
        self._record(register_hook_of_node, (proxy, method), handle, hook, node)
        return handle

    def on_several(
        self, tensors: Any, function: Callable[..., Any], mode: Any = "all"
    ) -> torch.utils.hooks.RemovableHandle:
        """Register a hook for the gradients of several tensors, and return the handle."""
        fakes = tuple(self._recorder.tensors.fake(tensor) for tensor in tensors)
        with torch._C.DisableTorchFunction():
            hook = Hook(function)
            handle = register_multi_grad_hook(fakes, self._recording_hook(hook), mode=mode)
        self._record(register_hook_of_several, (tuple(map(self._recorder.tensors.proxy, fakes)), mode), handle, hook)
        return handle

    def has_registered(self, handle: object) -> bool:
        """Whether a handle is of a hook that the program has registered."""
        return any(own_handle is handle for own_handle in self._kept)

    def remove(self, handle: Any) -> None:
        """Remove a hook of the program."""
        handle.remove()
        proxy = self._recorder.tensors.object_proxy(handle)
        self._recorder.emit(self._bound_symbol(remove_hook, (proxy,), None))

    def _recording_hook(self, hook: Hook) -> Callable[..., Any]:
        """Return the function that a backward pass on fakes calls for a hook.

        The hooks that exist when a backward pass begins are interpreted (`lookasides/functions/autograd.py`). The
        returned function also interprets a hook that another hook registers during the pass.
        """
        gradients = self._recorder.gradients
        if gradients.is_running and hook.function is not None:
            return gradients.recording_hook(functools.partial(self._run.machine.call, hook.function))
        return gradients.recording_hook(hook)

    @property
    def _recorder(self) -> Recorder:
        return self._run.recorder

    def _record(
        self, register: Callable[..., Any], args: tuple[Any, ...], handle: object, hook: Hook, *owners: Any
    ) -> None:
        """Record the bound symbol that registers a hook, and the effect that sets the hook's function."""
        self._kept += [handle, hook]
        if hook.function is not None:
            self._recorder.gradients.hooks.append(hook.function)
        results = (self._recorder.tensors.new_object_proxy(handle), self._recorder.tensors.new_object_proxy(hook))
        self._recorder.emit(self._bound_symbol(register, args, results))
        self._run.outside.effects.add_epilogue_call(set_function, (hook, hook.function, *owners))

    def _bound_symbol(self, function: Callable[..., Any], args: tuple[Any, ...], output: object) -> BoundSymbol:
        location = self._run.location()
        return BoundSymbol(symbol_of(function), args, {}, output, (), location.source, location.module, ordered=True)

    def _proxy_of(self, node: Node) -> Proxy:
        """Return the proxy of a node. The first call for a node records a bound symbol that returns the node.

        Raises `OperationFailed` if no tensor of the program leads to the node.
        """
        proxy: Proxy | None = self._recorder.tensors.proxy_of_new_object(node)
        if proxy is not None:
            return proxy
        tensor_and_steps = tensor_and_steps_to(node, self._recorder.tensors.latest)
        if tensor_and_steps is None:
            raise OperationFailed(
                f"a hook is registered on {type(node).__name__}, a node of the autograd graph that no tensor of the "
                "program leads to",
                fix="register the hook outside the compiled program, or on the `grad_fn` of a tensor that it computes",
                where=self._run.location().source,
            )
        new_proxy: Proxy = self._recorder.tensors.new_object_proxy(node)
        self._recorder.emit(
            self._bound_symbol(
                node_at, (self._recorder.tensors.proxy(tensor_and_steps[0]), tensor_and_steps[1]), new_proxy
            )
        )
        return new_proxy


METHODS_OF_NODES = frozenset({"register_hook", "register_prehook"})
