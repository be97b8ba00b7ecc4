"""Grad mode: the positions of a trace at which autograd is on, and the tensors that autograd may track."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

import torch

from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace

SET_GRAD = "torch._C._set_grad_enabled"
# Operators that read only the metadata of their input, so that autograd does not connect their results to it.
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
    """Yield for each bound symbol whether autograd is on; for a bound symbol that sets the mode, yield the new mode.

    `enabled` is the mode before the first bound symbol; by default it is the mode of this thread.
    """
    mode = torch.is_grad_enabled() if enabled is None else enabled
    for bsym in bsyms:
        mode = bool(bsym.args[0]) if sets_grad_mode(bsym) else mode
        yield mode


def tracked_by_autograd(trace: Trace) -> frozenset[str]:
    """Return the names of the tensors that autograd may track when the trace runs in the grad mode of this thread.

    The result may contain too many names, but never too few: for example, it contains the result of `detach`.
    """
    return frozenset(tracking_starts(trace))


def names_tracked_when_defined(trace: Trace) -> frozenset[str]:
    """Return the names of `tracked_by_autograd`, except tensors that autograd tracks only after they are written to."""
    return frozenset(_starts_and_tracked_when_defined(trace)[1])


def tracking_starts(trace: Trace) -> dict[str, int]:
    """Map each name of `tracked_by_autograd` to the index of the bound symbol that defines it or first writes to it.

    The index of an input or a constant is -1.
    """
    return _starts_and_tracked_when_defined(trace)[0]


def _starts_and_tracked_when_defined(trace: Trace) -> tuple[dict[str, int], set[str]]:
    when_defined = {proxy.name for proxy in trace.inputs if isinstance(proxy, TensorProxy) and proxy.requires_grad}
    when_defined |= {name for name, value in trace.constants.items() if getattr(value, "requires_grad", False)}
    starts = dict.fromkeys(when_defined, -1)
    modes = grad_modes(trace.bound_symbols)
    for index, (bsym, enabled) in enumerate(zip(trace.bound_symbols, modes, strict=True)):
        if enabled and _is_tracked(bsym, starts):
            differentiable = {
                proxy.name for proxy in bsym.tensors if proxy.dtype.is_floating_point or proxy.dtype.is_complex
            }
            when_defined |= differentiable
            for name in (*differentiable, *bsym.mutates):
                starts.setdefault(name, index)
    return starts, when_defined


def may_be_recorded(trace: Trace, tracked: frozenset[str]) -> list[bool]:
    """Return for each bound symbol whether autograd may record it.

    Autograd may record a bound symbol if autograd is on, and the bound symbol reads or returns a tensor in `tracked`.
    """
    return [
        enabled and any(proxy.name in tracked for proxy in (*bsym.inputs, *bsym.outputs))
        for bsym, enabled in zip(trace.bound_symbols, grad_modes(trace.bound_symbols), strict=True)
    ]


def is_pure(trace: Trace) -> bool:
    """Whether a trace writes to no tensor, and autograd records nothing in it."""
    recorded = may_be_recorded(trace, tracked_by_autograd(trace))
    return not any(recorded) and not any(bsym.mutates for bsym in trace.bound_symbols)


def _is_tracked(bsym: BoundSymbol, tracked: Container[str]) -> bool:
    """Whether autograd may track the results: the bound symbol reads a tracked tensor, or calls `requires_grad_`."""
    reads_tracked = any(proxy.name in tracked for proxy in bsym.inputs) and not _reads_only_metadata(bsym)
    return reads_tracked or (bsym.ordered and bsym.symbol.short_name == "requires_grad_")


def _reads_only_metadata(bsym: BoundSymbol) -> bool:
    """Whether all operations of a bound symbol read only metadata, such as `torch.zeros_like(x)`."""
    schemas = (getattr(operation.symbol.target, "_schema", None) for operation in bsym.operations)
    is_factory = bool(bsym.operations) and all(getattr(schema, "name", "") in FACTORIES for schema in schemas)
    return is_factory and not bsym.kwargs.get("requires_grad")
