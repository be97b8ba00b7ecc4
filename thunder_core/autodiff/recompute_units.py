"""Units: the lines of a forward that have to be run together, if what they make is to be made a second time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch

from thunder_core.analysis.aliasing import names_written_to
from thunder_core.ir.proxy import Proxy, TensorProxy
from thunder_core.ir.symbol import BoundSymbol, Symbol
from thunder_core.ir.trace import Trace
from thunder_core.ir.tree import leaves

# Operations that update running statistics, which their schemas do not say.
WRITES = frozenset(
    f"torch.ops.aten.{name}.default" for name in ("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm")
)


@dataclass(eq=False)
class Unit:
    """A line, with those behind it that write to what it makes before anything else reads it.

    `place` is where it begins in the forward and `block` the number of the block that it is in, -1 for none. A unit
    that is `fixed` has an effect that must not happen twice, or reads what has changed since.
    """

    place: int
    lines: list[BoundSymbol]
    block: int = -1
    fixed: bool = False
    read: bool = False

    @property
    def random(self) -> bool:
        """Whether it draws random numbers."""
        return any(line.ordered for line in self.lines)

    @property
    def device(self) -> torch.device:
        """Where it draws them."""
        return next(proxy.device for line in self.lines for proxy in line.outputs if isinstance(proxy, TensorProxy))

    @property
    def defines(self) -> dict[str, Proxy]:
        """What it makes, by name."""
        return {proxy.name: proxy for line in self.lines for proxy in line.defines}

    @property
    def inputs(self) -> dict[str, Proxy]:
        """What it reads and does not make."""
        made = self.defines
        return {p.name: p for line in self.lines for p in line.inputs if p.name not in made}


@dataclass
class Units:
    """The units of a forward, in order, and the one that makes each name."""

    all: list[Unit] = field(default_factory=list)
    makers: dict[str, Unit] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Unit]:
        return iter(self.all)

    def add(self, line: BoundSymbol, place: int, block: int) -> None:
        """A line of its own, or one that belongs to what it writes to."""
        owners = {id(unit): unit for name in line.mutates if (unit := self.makers.get(name)) is not None}
        owner = next(iter(owners.values()), None)
        unit = Unit(place, [line], block)
        joins = owner is not None and len(owners) == 1 and all(name in self.makers for name in line.mutates)
        if joins and owner is not None and not owner.read and owner.block == block:
            owner.lines.append(line)
            unit = owner
        else:
            unit.fixed = bool(line.mutates)
            for one in owners.values():
                one.fixed = True
            self.all.append(unit)
        if (line.ordered and not _is_repeatable(line)) or any(
            one.symbol.name in WRITES for one in line.at_level("aten")
        ):
            unit.fixed = True
        for proxy in line.inputs:
            maker = self.makers.get(proxy.name)
            if maker is not None and maker is not unit:
                maker.read = True
        self.makers |= dict.fromkeys((proxy.name for proxy in line.defines), unit)


def units_of(forward: Trace) -> Units:
    """The lines of a forward as units; what reads memory that is written to elsewhere is fixed."""
    found = Units()
    for place, line in enumerate(forward.bound_symbols):
        found.add(line, place, block_of(line, forward.blocks))
    written = names_written_to(forward)
    for unit in found if written else ():
        touched = unit.inputs.keys() & written
        unit.fixed |= any(_changes(name, found) for name in touched)
        unit.fixed |= bool(unit.defines.keys() & written) and not any(line.mutates for line in unit.lines)
    return found


def block_of(line: BoundSymbol, blocks: Mapping[str, int]) -> int:
    """The block that a line is in, by the names that it makes or writes to."""
    names = (*(proxy.name for proxy in line.defines), *line.mutates)
    return next((blocks[name] for name in names if name in blocks), -1)


def _changes(name: str, units: Units) -> bool:
    """Whether the memory behind a name is written to by others than the lines that make it."""
    maker = units.makers.get(name)
    return maker is None or maker.fixed or not any(line.mutates for line in maker.lines)


def _is_repeatable(line: BoundSymbol) -> bool:
    """Whether a line draws its numbers from a generator whose state can be had: the default one of a device."""
    given = any(isinstance(leaf, torch.Generator) for leaf in leaves((line.args, dict(line.kwargs))))
    tensors = [proxy for proxy in line.outputs if isinstance(proxy, TensorProxy)]
    devices = {proxy.device for proxy in tensors}
    return not given and len(devices) == 1 and devices.pop().type in STATES


# For each kind of device how the state of its generator is read and set.
STATES = {
    "cpu": (Symbol("torch.get_rng_state", torch.get_rng_state), Symbol("torch.set_rng_state", torch.set_rng_state)),
    "cuda": (
        Symbol("torch.cuda.get_rng_state", torch.cuda.get_rng_state),
        Symbol("torch.cuda.set_rng_state", torch.cuda.set_rng_state),
    ),
}
STATE_BYTES = {"cpu": 5056, "cuda": 16}


def get_state(name: str, device: torch.device) -> BoundSymbol:
    """The line that reads the state of a device's generator."""
    state = TensorProxy(name, (STATE_BYTES[device.type],), (1,), torch.uint8, torch.device("cpu"))
    args = () if device.type == "cpu" else (device,)
    return BoundSymbol(STATES[device.type][0], args, {}, state, ordered=True)


def set_state(state: Proxy, device: torch.device) -> BoundSymbol:
    """The line that sets it."""
    args = (state,) if device.type == "cpu" else (state, device)
    return BoundSymbol(STATES[device.type][1], args, {}, None, ordered=True)
