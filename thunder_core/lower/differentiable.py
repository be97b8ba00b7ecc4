"""Which tensors of a trace autograd may have to follow: those that come from what requires a gradient."""

from __future__ import annotations

import torch

from thunder_core.ir.proxy import TensorProxy
from thunder_core.ir.symbol import BoundSymbol
from thunder_core.ir.trace import Trace

SWITCH = "torch._C._set_grad_enabled"


def differentiable(trace: Trace) -> frozenset[str]:
    """The names that autograd may record when the trace runs in the grad mode of this thread.

    Rather one too many than one too few: what is detached counts as following its input.
    """
    enabled = torch.is_grad_enabled()
    found = {proxy.name for proxy in trace.inputs if isinstance(proxy, TensorProxy) and proxy.requires_grad}
    found |= {name for name, value in trace.constants.items() if getattr(value, "requires_grad", False)}
    for bsym in trace.bound_symbols:
        if bsym.symbol.name == SWITCH:
            enabled = bool(bsym.args[0])
        elif enabled and _is_followed(bsym, found):
            found |= {proxy.name for proxy in bsym.tensors if proxy.dtype.is_floating_point or proxy.dtype.is_complex}
            found |= set(bsym.mutates)
    return frozenset(found)


def recorded(trace: Trace, found: frozenset[str]) -> list[bool]:
    """For each line whether autograd may record it: it is on there, and the line has to do with what it follows."""
    enabled = torch.is_grad_enabled()
    result = []
    for bsym in trace.bound_symbols:
        enabled = bool(bsym.args[0]) if bsym.symbol.name == SWITCH else enabled
        result.append(enabled and any(proxy.name in found for proxy in (*bsym.inputs, *bsym.outputs)))
    return result


def _is_followed(bsym: BoundSymbol, found: set[str]) -> bool:
    return any(proxy.name in found for proxy in bsym.inputs) or bsym.symbol.short_name == "requires_grad_"
