"""Decomposition of autocast: bound symbols become the operations and casts that autocast runs, with autocast off."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import torch

from thunder_core.backend.functionalization.kept_memory import detaches_new_tensor
from thunder_core.passes.autodiff.tape import Underivable
from thunder_core.tracing.analysis.own_derivatives import has_derivative_rule
from thunder_core.tracing.capture.torch_facts.autocast import AUTOCAST_DEVICES
from thunder_core.tracing.capture.torch_facts.switches import switches_autocast
from thunder_core.tracing.capture.torch_facts.symbols import as_bound_symbol, symbol_of
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace, with_subtraces

ALIAS = torch.ops.aten.alias.default
# Operators whose kernels call operators that autocast casts. They are recorded without the casts of these.
KERNELS_WITH_CASTS = frozenset(
    map(symbol_of, (torch.ops.aten._trilinear.default, torch.ops.aten.linalg_pinv.atol_rtol_tensor))
)


def runs_under_autocast(bsyms: Iterable[BoundSymbol]) -> bool:
    """Whether autocast is on in this thread, or a bound symbol may switch it on."""
    return any(map(torch.is_autocast_enabled, AUTOCAST_DEVICES)) or any(map(switches_autocast, bsyms))


def decompose_autocast(bsyms: Iterable[BoundSymbol]) -> list[BoundSymbol]:
    """Return the aten operations of bound symbols, without switches of autocast.

    Raises `Underivable` for a bound symbol with tensor inputs whose operations were not recorded.
    """
    return [part for bsym in bsyms if not switches_autocast(bsym) for part in _parts(bsym)]


def _parts(bsym: BoundSymbol) -> Iterator[BoundSymbol]:
    """Yield the aten operations of a bound symbol, or the bound symbol itself if it needs no decomposition."""
    if has_derivative_rule(bsym):
        raise Underivable(f"`{bsym.symbol.name}` has its own derivative under autocast")
    if bsym.functions:
        yield with_subtraces(bsym, _decomposed_function)
        return
    if not bsym.operations:
        if bsym.ordered or not any(isinstance(proxy, TensorProxy) for proxy in bsym.inputs):
            yield bsym
            return
        raise Underivable(f"`{bsym.symbol.name}`: its operations under autocast are not known")
    for part in bsym.operations:
        if part.symbol in KERNELS_WITH_CASTS:
            raise Underivable(f"`{part.symbol.name}` calls operators that autocast casts")
        # Autograd does not track a tensor that a factory function has just made, so `alias` can replace `detach`. A
        # `detach` would hide from autograd that a later write to the detached tensor also changes the original.
        operation = replace(part, symbol=symbol_of(ALIAS)) if detaches_new_tensor(part, bsym) else part
        yield operation if part is bsym else as_bound_symbol(operation, bsym)


def _decomposed_function(function: Trace) -> Trace:
    return function.having(decompose_autocast(function.bound_symbols), made_by=function.made_by)


def with_autocast_off(bsyms: Sequence[BoundSymbol], on: Sequence[str] | None = None) -> list[BoundSymbol]:
    """Return the bound symbols between bound symbols that switch autocast off and on again.

    `on` are the devices whose autocast is on; by default, those of this thread's current state.
    """
    if on is None:
        on = [device for device in AUTOCAST_DEVICES if torch.is_autocast_enabled(device)]
    return [*(_switch(device, False) for device in on), *bsyms, *(_switch(device, True) for device in on)]


def _switch(device: str, enabled: bool) -> BoundSymbol:
    return BoundSymbol(symbol_of(torch.set_autocast_enabled), (device, enabled), {}, None, ordered=True)
