"""An index of a trace's bound symbols, which is updated while matches of patterns are replaced."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from thunder_core.backend.patterns.spelling import family, named_arguments
from thunder_core.tracing.analysis.grad_mode import grad_modes
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace

# The functions that set the autocast state, each with the function that returns the state.
AUTOCAST_STATE_QUERIES: dict[str, Callable[..., object]] = {
    "torch.set_autocast_enabled": torch.is_autocast_enabled,
    "torch.set_autocast_dtype": torch.get_autocast_dtype,
}


class TraceIndex:
    """The bound symbols of a trace by position (`at`), and the tables that the search for matches reads.

    `producer` and `readers` have the positions of the bound symbols that define and read a name. `by_family` has the
    positions of unclaimed bound symbols by their family: the operation, however it is spelled. `effects` are the
    positions of bound symbols with effects. `needs_grad` has the names of tensors that autograd will track, and `grad`
    the grad mode at each position. After a replacement, the positions of the replaced bound symbols are empty, except
    for the position of the replacement.
    """

    def __init__(self, trace: Trace) -> None:
        self.at: list[BoundSymbol | None] = list(trace.bound_symbols)
        self.returned = frozenset(proxy.name for proxy in trace.outputs)
        self.producer: dict[str, int] = {}
        self.readers: dict[str, set[int]] = {}
        self.by_family: dict[str, list[int]] = {}
        self.families = [family(bsym.symbol.name) for bsym in trace.bound_symbols]
        self._arguments: dict[int, dict[str, Any]] = {}
        # Whether the bound symbol at each position may become part of a match: it is unclaimed, has no effect and no
        # lazy conjugation, and runs under the autocast state that this thread has now.
        self.free: list[bool] = []
        self.effects: list[int] = []
        self.needs_grad = {p.name for p in trace.inputs if isinstance(p, TensorProxy) and p.requires_grad}
        autocast_states: dict[tuple[Any, ...], Any] = {}  # the states that the trace has set up to the position
        self.grad = list(grad_modes(trace.bound_symbols))
        for position, (bsym, grad) in enumerate(zip(trace.bound_symbols, self.grad, strict=True)):
            self._enter(position, bsym)
            if bsym.ordered and bsym.symbol.name in AUTOCAST_STATE_QUERIES:
                autocast_states[(bsym.symbol.name, *bsym.args[:-1])] = bsym.args[-1]
            differs_from_now = any(
                AUTOCAST_STATE_QUERIES[name](*args) != value for (name, *args), value in autocast_states.items()
            )
            self.free.append(bsym.is_resolved and not (bsym.executor or bsym.has_effect or differs_from_now))
            if bsym.has_effect:
                self.effects.append(position)
            if grad and any(proxy.name in self.needs_grad for proxy in bsym.inputs):
                self.needs_grad.update(proxy.name for proxy in bsym.defines)

    def _enter(self, position: int, bsym: BoundSymbol) -> None:
        """Put a bound symbol at a position, and enter its names into the tables."""
        self.at[position] = bsym
        for proxy in bsym.defines:
            self.producer[proxy.name] = position
        for proxy in bsym.inputs:
            self.readers.setdefault(proxy.name, set()).add(position)
        if not bsym.executor:
            self.by_family.setdefault(self.families[position], []).append(position)

    def replace(
        self, positions: frozenset[int], kept_positions: frozenset[int], replacement_position: int, bsym: BoundSymbol
    ) -> None:
        """Put a bound symbol at `replacement_position` in place of the bound symbols at `positions`.

        The bound symbols at `kept_positions` stay, because others read their results.
        """
        for position in positions - kept_positions:
            for proxy in self.bsym_at(position).inputs:
                self.readers[proxy.name].discard(position)
            self.at[position] = None
        for position in positions | {replacement_position}:
            self.free[position] = self.free[position] and position in kept_positions
        self._enter(replacement_position, bsym)

    def effect_between(self, first: int, last: int) -> int | None:
        """Return the first position from `first` to before `last` with an effect; None if there is none."""
        index = bisect_left(self.effects, first)
        return self.effects[index] if index < len(self.effects) and self.effects[index] < last else None

    def bsym_at(self, position: int) -> BoundSymbol:
        """Return the bound symbol at a position that is not empty."""
        bsym = self.at[position]
        assert bsym is not None, position
        return bsym

    def arguments(self, position: int) -> dict[str, Any]:
        """Return the arguments of the bound symbol at a position by name."""
        named = self._arguments.get(position)
        if named is None:
            bsym = self.bsym_at(position)
            named = self._arguments[position] = named_arguments(bsym.symbol.target, bsym.args, bsym.kwargs)
        return named

    def with_requires_grad(self, value: object) -> Any:
        """Return a proxy whose `requires_grad` says whether autograd will track its tensor."""
        if not isinstance(value, TensorProxy):
            return value
        tracked = value.name in self.needs_grad and (value.dtype.is_floating_point or value.dtype.is_complex)
        return value if tracked == value.requires_grad else replace(value, requires_grad=tracked)
