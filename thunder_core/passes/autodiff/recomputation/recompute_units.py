"""Recompute units: bound symbols of a forward that are recomputed together, because one writes to another's result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch

from thunder_core.tracing.analysis.aliasing import names_written_to
from thunder_core.tracing.capture.torch_facts.writes import updates_statistics
from thunder_core.tracing.ir.proxy import Proxy, TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol, Symbol
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.ir.tree import leaves


@dataclass(eq=False)
class Unit:
    """A bound symbol, and the later bound symbols that write to its results before others read them.

    `index` is the position of the first bound symbol in the forward, and `block` the number of its block, or -1. A unit
    that `is_not_recomputable` has an effect that must not happen twice, or reads memory that is written to later.
    `is_read` is True if a bound symbol outside the unit has read a result of the unit.
    """

    index: int
    bsyms: list[BoundSymbol]
    block: int = -1
    is_not_recomputable: bool = False
    is_read: bool = False

    @property
    def is_random(self) -> bool:
        """Whether the unit draws random numbers."""
        return any(bsym.ordered for bsym in self.bsyms)

    @property
    def device(self) -> torch.device:
        """The device of the unit's random numbers."""
        return next(proxy.device for bsym in self.bsyms for proxy in bsym.outputs if isinstance(proxy, TensorProxy))

    @property
    def defines(self) -> dict[str, Proxy]:
        """The proxies that the unit makes, by name."""
        return {proxy.name: proxy for bsym in self.bsyms for proxy in bsym.defines}

    @property
    def inputs(self) -> dict[str, Proxy]:
        """The proxies that the unit reads and does not make, by name."""
        defined = self.defines
        return {p.name: p for bsym in self.bsyms for p in bsym.inputs if p.name not in defined}


@dataclass
class Units:
    """The units of a forward, in order, and the unit that makes each name."""

    all: list[Unit] = field(default_factory=list)
    makers: dict[str, Unit] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Unit]:
        return iter(self.all)

    def add(self, bsym: BoundSymbol, index: int, block: int) -> None:
        """Add a bound symbol as a unit; if it writes to a tensor, add it to the unit that makes the tensor."""
        owners = {id(unit): unit for name in bsym.mutates if (unit := self.makers.get(name)) is not None}
        owner = next(iter(owners.values()), None)
        unit = Unit(index, [bsym], block)
        joins = owner is not None and len(owners) == 1 and all(name in self.makers for name in bsym.mutates)
        if joins and owner is not None and not owner.is_read and owner.block == block:
            owner.bsyms.append(bsym)
            unit = owner
        else:
            unit.is_not_recomputable = bool(bsym.mutates)
            for written in owners.values():
                written.is_not_recomputable = True
            self.all.append(unit)
        if (bsym.ordered and not _is_repeatable(bsym)) or any(
            updates_statistics(operation.symbol.target) for operation in bsym.at_level("aten")
        ):
            unit.is_not_recomputable = True
        for proxy in bsym.inputs:
            maker = self.makers.get(proxy.name)
            if maker is not None and maker is not unit:
                maker.is_read = True
        self.makers |= dict.fromkeys((proxy.name for proxy in bsym.defines), unit)


def units_of(forward: Trace) -> Units:
    """Return the units of a forward.

    A unit is not recomputable if a checkpoint's policy saves its results, or if it reads memory that bound symbols
    outside of the unit write to.
    """
    units = Units()
    for index, bsym in enumerate(forward.bound_symbols):
        units.add(bsym, index, block_of(bsym, forward.blocks))
        names_of_kept = kept_operation_names(bsym, forward.kept_operations) if forward.kept_operations else ()
        if any(operation.symbol.name in names_of_kept for operation in bsym.operations):
            units.makers[bsym.outputs[0].name].is_not_recomputable = True
    written = names_written_to(forward)
    for unit in units if written else ():
        inputs_written = written.intersection(unit.inputs)  # `&` of a dict's keys would iterate over all of `written`
        unit.is_not_recomputable |= any(_is_written_outside(name, units) for name in inputs_written)
        unit.is_not_recomputable |= not written.isdisjoint(unit.defines) and not any(
            bsym.mutates for bsym in unit.bsyms
        )
    return units


def block_of(bsym: BoundSymbol, blocks: Mapping[str, int]) -> int:
    """Return the number of the block of a bound symbol, by the names that it defines or mutates; -1 without a block."""
    names = (*(proxy.name for proxy in bsym.defines), *bsym.mutates)
    return next((blocks[name] for name in names if name in blocks), -1)


def kept_operation_names(bsym: BoundSymbol, kept_operations: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """Return the names of the aten operations of a bound symbol whose results a checkpoint's policy saves."""
    names = (proxy.name for proxy in bsym.outputs)
    return next((kept_operations[name] for name in names if name in kept_operations), frozenset())


def _is_written_outside(name: str, units: Units) -> bool:
    """Whether bound symbols outside of the unit that makes a tensor write to the memory of the tensor."""
    maker = units.makers.get(name)
    return maker is None or maker.is_not_recomputable or not any(bsym.mutates for bsym in maker.bsyms)


def _is_repeatable(bsym: BoundSymbol) -> bool:
    """Whether a bound symbol draws its numbers from a device's default generator, whose state can be read and set."""
    takes_generator = any(isinstance(leaf, torch.Generator) for leaf in leaves((bsym.args, dict(bsym.kwargs))))
    tensors = [proxy for proxy in bsym.outputs if isinstance(proxy, TensorProxy)]
    devices = {proxy.device for proxy in tensors}
    return not takes_generator and len(devices) == 1 and devices.pop().type in STATE_FUNCTIONS


# The symbols that read and set the state of a device's generator, by device type.
STATE_FUNCTIONS = {
    "cpu": (Symbol("torch.get_rng_state", torch.get_rng_state), Symbol("torch.set_rng_state", torch.set_rng_state)),
    "cuda": (
        Symbol("torch.cuda.get_rng_state", torch.cuda.get_rng_state),
        Symbol("torch.cuda.set_rng_state", torch.cuda.set_rng_state),
    ),
}
STATE_BYTES = {"cpu": 5056, "cuda": 16}


def get_state(name: str, device: torch.device) -> BoundSymbol:
    """Return the bound symbol that reads the state of a device's generator."""
    state = TensorProxy(name, (STATE_BYTES[device.type],), (1,), torch.uint8, torch.device("cpu"))
    args = () if device.type == "cpu" else (device,)
    return BoundSymbol(STATE_FUNCTIONS[device.type][0], args, {}, state, ordered=True)


def set_state(state: Proxy, device: torch.device) -> BoundSymbol:
    """Return the bound symbol that sets the state of a device's generator."""
    args = (state,) if device.type == "cpu" else (state, device)
    return BoundSymbol(STATE_FUNCTIONS[device.type][1], args, {}, None, ordered=True)
