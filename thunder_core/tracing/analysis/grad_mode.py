"""Grad mode: where in a trace autograd is on, and which tensors it may have to track."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace

SET_GRAD = "torch._C._set_grad_enabled"


def sets_grad_mode(bsym: BoundSymbol) -> bool:
    """Whether a bound symbol switches autograd on or off."""
    return bsym.symbol.name == SET_GRAD


def grad_modes(bsyms: Iterable[BoundSymbol], enabled: bool | None = None) -> Iterator[bool]:
    """Yield whether autograd is on for each bound symbol; for a switch, yield the mode after it.

    `enabled` is the mode before the first bound symbol; by default it is the mode of this thread.
    """
    mode = torch.is_grad_enabled() if enabled is None else enabled
    for bsym in bsyms:
        mode = bool(bsym.args[0]) if sets_grad_mode(bsym) else mode
        yield mode


def followed_by_autograd(trace: Trace) -> frozenset[str]:
    """Return the names that autograd may track when the trace runs in the grad mode of this thread.

    The result may contain too many names, but never too few: a detached tensor counts as dependent on its input.
    """
    return _followed_and_made(trace)[0]


def followed_when_made(trace: Trace) -> frozenset[str]:
    """Return the names that autograd may track from their definition, without those tracked only since a write."""
    return _followed_and_made(trace)[1]


def _followed_and_made(trace: Trace) -> tuple[frozenset[str], frozenset[str]]:
    requiring = {proxy.name for proxy in trace.inputs if isinstance(proxy, TensorProxy) and proxy.requires_grad}
    requiring |= {name for name, value in trace.constants.items() if getattr(value, "requires_grad", False)}
    defined = set(requiring)
    for bsym, enabled in zip(trace.bound_symbols, grad_modes(trace.bound_symbols), strict=True):
        if enabled and _is_followed(bsym, requiring):
            defined |= {proxy.name for proxy in bsym.tensors if proxy.dtype.is_floating_point or proxy.dtype.is_complex}
            requiring |= defined | set(bsym.mutates)
    return frozenset(requiring), frozenset(defined)


def may_be_recorded(trace: Trace, requires_grad_names: frozenset[str]) -> list[bool]:
    """Return for each bound symbol whether autograd may record it: autograd is on, and a tracked tensor occurs."""
    return [
        enabled and any(proxy.name in requires_grad_names for proxy in (*bsym.inputs, *bsym.outputs))
        for bsym, enabled in zip(trace.bound_symbols, grad_modes(trace.bound_symbols), strict=True)
    ]


def _is_followed(bsym: BoundSymbol, requiring: set[str]) -> bool:
    return any(proxy.name in requiring for proxy in bsym.inputs) or (
        bsym.ordered and bsym.symbol.short_name == "requires_grad_"
    )
