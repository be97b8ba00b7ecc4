"""Nodes of autograd's graph at which tracing stops: each says where a tensor without data comes from."""

from __future__ import annotations

from typing import Any

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.utils._python_dispatch import _disable_current_modes


class _Opaque(torch.autograd.Function):
    """The identity in place, with a backward that never runs: a tensor that it returns may be written to."""

    @staticmethod
    def forward(ctx: Any, source: torch.Tensor, fake: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        ctx.mark_dirty(fake)
        return fake

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise NotImplementedError("tracing computes no gradients through it")


class _FromOutside(_Opaque):
    """The node behind a tensor that was made before the program began."""


class _FromCall(_Opaque):
    """The node behind a tensor that a called compiled function made."""


FROM_OUTSIDE: type = _FromOutside._backward_cls
FROM_CALL: type = _FromCall._backward_cls


def followed_from_outside(fake: torch.Tensor) -> torch.Tensor:
    """A fake as autograd's result of something outside of the program."""
    return _behind(_FromOutside, fake)


def followed_from_call(fake: torch.Tensor) -> torch.Tensor:
    """A fake as autograd's result of a compiled function that the program calls, beneath the levels that it is in."""
    with torch._C.DisableTorchFunction(), _disable_current_modes(), temporarily_clear_interpreter_stack():
        return _behind(_FromCall, fake)


def _behind(node: type[_Opaque], fake: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        source = torch.empty(0, device="meta", requires_grad=True)
        result: torch.Tensor = node.apply(source, fake)  # type: ignore[no-untyped-call]
        return result
