"""Grad mode: where in a trace autograd is on, and which tensors it may have to track."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

import torch

from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace

SET_GRAD = "torch._C._set_grad_enabled"
# Operators that read only the metadata of their input, so that autograd does not track their results.
FACTORIES = frozenset(
    f"aten::{name}"
    for name in (
        *("new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros", "empty_like", "full_like"),
        *("ones_like", "zeros_like", "rand_like", "randn_like", "randint_like"),
    )
)


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
    return frozenset(_followed_and_made(trace)[0])


def followed_when_made(trace: Trace) -> frozenset[str]:
    """Return the names that autograd may track from their definition, without those tracked only since a write."""
    return frozenset(_followed_and_made(trace)[1])


def followed_since(trace: Trace) -> dict[str, int]:
    """Map each name that autograd may track to the index of the bound symbol since which it may; -1 for inputs."""
    return _followed_and_made(trace)[0]


def _followed_and_made(trace: Trace) -> tuple[dict[str, int], set[str]]:
    defined = {proxy.name for proxy in trace.inputs if isinstance(proxy, TensorProxy) and proxy.requires_grad}
    defined |= {name for name, value in trace.constants.items() if getattr(value, "requires_grad", False)}
    requiring = dict.fromkeys(defined, -1)
    modes = grad_modes(trace.bound_symbols)
    for index, (bsym, enabled) in enumerate(zip(trace.bound_symbols, modes, strict=True)):
        if enabled and _is_followed(bsym, requiring):
            differentiable = {
                proxy.name for proxy in bsym.tensors if proxy.dtype.is_floating_point or proxy.dtype.is_complex
            }
            defined |= differentiable
            for name in (*differentiable, *bsym.mutates):
                requiring.setdefault(name, index)
    return requiring, defined


def may_be_recorded(trace: Trace, requires_grad_names: frozenset[str]) -> list[bool]:
    """Return for each bound symbol whether autograd may record it: autograd is on, and a tracked tensor occurs."""
    return [
        enabled and any(proxy.name in requires_grad_names for proxy in (*bsym.inputs, *bsym.outputs))
        for bsym, enabled in zip(trace.bound_symbols, grad_modes(trace.bound_symbols), strict=True)
    ]


def _is_followed(bsym: BoundSymbol, requiring: Container[str]) -> bool:
    reads = any(proxy.name in requiring for proxy in bsym.inputs) and not _reads_only_metadata(bsym)
    return reads or (bsym.ordered and bsym.symbol.short_name == "requires_grad_")


def _reads_only_metadata(bsym: BoundSymbol) -> bool:
    """Whether a bound symbol makes a tensor like another one, without its values."""
    schemas = (getattr(operation.symbol.target, "_schema", None) for operation in bsym.operations)
    is_factory = bool(bsym.operations) and all(getattr(schema, "name", "") in FACTORIES for schema in schemas)
    return is_factory and not bsym.kwargs.get("requires_grad")
