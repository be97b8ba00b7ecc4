"""The memory that a trace writes to, and the memory that a run of bound symbols may write to within a wrapper."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch

from thunder_core.tracing.analysis.aliasing import AliasSets, alias_sets
from thunder_core.tracing.analysis.grad_mode import tracked_by_autograd
from thunder_core.tracing.ir.layout import GRADIENT
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace

ITEM = re.compile(r"\[(?:\d+|'[^']*'|\"[^\"]*\")\]")


@dataclass(frozen=True)
class WrittenMemory:
    """The memory that a trace writes to, divided into held memory (parameters, buffers, caches) and moving memory.

    All sets have names of tensors. `held_names` have written memory that objects hold. `moving` have other written
    memory, whose address differs at each call: arguments, and tensors that the trace makes. `from_outside` are
    representative names of the written memory that inputs and constants have. `recorded` are tensors whose operations
    autograd records, and all tensors in their memory if it is written to. `static` are constants and the inputs that
    objects hold, written to or not.
    """

    aliasing: AliasSets
    held_names: frozenset[str]
    moving: frozenset[str]
    from_outside: frozenset[str]
    recorded: frozenset[str]
    static: frozenset[str]

    @classmethod
    def of(cls, trace: Trace) -> WrittenMemory:
        """Return the memory that a trace writes to."""
        bsyms = trace.bound_symbols
        defined = {proxy.name for bsym in bsyms for proxy in bsym.defines}
        recorded = tracked_by_autograd(trace)
        aliasing = alias_sets(bsyms, trace.aliases)
        outside = {proxy.name for proxy in trace.inputs} | trace.constants.keys()
        held_names, moving, arguments, barred = set[str](), set[str](), set[str](), set(recorded & defined)
        for head in {aliasing.representative(name) for bsym in bsyms for name in bsym.mutates}:
            names = aliasing.members(head)
            roots = names & outside
            stays = roots and all(is_held(trace.origins.get(name, "")) for name in roots)
            (barred if names & recorded else held_names if stays else moving).update(names)
            arguments.update({head} if roots else ())
        inputs = frozenset(proxy.name for proxy in trace.inputs if is_held(trace.origins.get(proxy.name, "")))
        return cls(
            aliasing,
            held_names=frozenset(held_names),
            moving=frozenset(moving),
            from_outside=frozenset(arguments),
            recorded=frozenset(barred),
            static=inputs | trace.constants.keys(),
        )

    @property
    def written(self) -> frozenset[str]:
        """The names of memory that is written to, and of tensors whose operations autograd records."""
        return self.held_names | self.moving | self.recorded

    def indices(self, inputs: Sequence[str]) -> tuple[int, ...]:
        """Return the indices of the inputs in held memory that the trace writes to."""
        return tuple(index for index, name in enumerate(inputs) if name in self.held_names)

    def moving_heads(self, names: Iterable[str]) -> set[str]:
        """Return the representatives of moving memory among names."""
        return {self.aliasing.representative(name) for name in names if name in self.moving}


@dataclass
class MemoryOfRun:
    """The moving memory that a run of bound symbols reads from outside of the run, and that it writes to.

    `devices` are the devices of the run's tensors: there is only one, unless the first bound symbol has several.
    """

    memory: WrittenMemory
    devices: set[torch.device] = field(default_factory=set)
    defined: set[str] = field(default_factory=set)
    read: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)

    def admits(self, bsym: BoundSymbol) -> bool:
        """Whether a bound symbol may be added: the run stays on its device, and writes to no moving outside memory."""
        if self.devices and devices_of(bsym) != self.devices:
            return False
        read, written = self._read_and_written_with(bsym)
        return not (written & self.memory.from_outside or written & read)

    def add(self, bsym: BoundSymbol) -> None:
        """Add a bound symbol to the run."""
        self.read, self.written = self._read_and_written_with(bsym)
        self.defined.update(proxy.name for proxy in bsym.defines)
        self.devices.update(devices_of(bsym))

    def _read_and_written_with(self, bsym: BoundSymbol) -> tuple[set[str], set[str]]:
        outside = (proxy.name for proxy in bsym.inputs if proxy.name not in self.defined)
        heads = self.memory.moving_heads
        return self.read | heads(outside), self.written | heads(bsym.mutates)


def devices_of(bsym: BoundSymbol) -> set[torch.device]:
    """Return the devices of the tensors that a bound symbol reads and computes."""
    return {proxy.device for proxy in (*bsym.inputs, *bsym.outputs) if isinstance(proxy, TensorProxy)}


def is_held(origin: str) -> bool:
    """Whether a tensor is an attribute of an object (`module.weight`, `args[0].layers[1].keys`): its address is stable.

    An argument itself, an item of an argument, and the gradient of a weight are other tensors at most calls.
    """
    return not origin.startswith(GRADIENT) and "." in ITEM.sub("", origin)
