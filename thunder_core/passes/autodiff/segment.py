"""A segment: consecutive bound symbols of a recording, which a derivative replaces by other bound symbols."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch.utils._python_dispatch import _disable_current_modes

from thunder_core.passes.autodiff.tape import Underivable
from thunder_core.tracing.capture.recorder import Recorder
from thunder_core.tracing.capture.torch_facts.modes import without_functions
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace


@dataclass
class RecordedSegment:
    """The bound symbols that the recorder records from the creation of the segment until `close` is called."""

    recorder: Recorder
    start: int = field(init=False)
    bsyms: list[BoundSymbol] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.recorder.levels.require_none("a derivative by thunder_core is taken", "use torch.func")
        self.start = len(self.recorder.bound_symbols)
        self.recorder.begin_derivative()

    def close(self) -> None:
        """End the segment after the last recorded bound symbol."""
        self.bsyms = self.recorder.bound_symbols[self.start :]
        self.recorder.end_derivative()

    @property
    def writes(self) -> bool:
        """Whether any bound symbol of the segment writes to a tensor."""
        return any(bsym.mutates for bsym in self.bsyms)

    @property
    def after(self) -> list[BoundSymbol]:
        """The bound symbols that were recorded after the segment."""
        return self.recorder.bound_symbols[self.start + len(self.bsyms) :]

    def trace(self, inputs: Sequence[TensorProxy], outputs: Sequence[TensorProxy]) -> Trace:
        """Return the bound symbols as a trace with these inputs and outputs.

        `inputs` has only the tensors that autograd tracks; the bound symbols may also read other tensors.
        """
        return Trace("segment", tuple(inputs), tuple(self.bsyms), tuple(outputs))

    def replace_with(self, bsyms: Sequence[BoundSymbol]) -> None:
        """Replace the bound symbols of the segment by bound symbols that define at least the same names.

        Raises `Underivable` if the bound symbols of the segment have already been replaced.
        """
        recorded = self.recorder.bound_symbols[self.start : self.start + len(self.bsyms)]
        if list(map(id, recorded)) != list(map(id, self.bsyms)):
            raise Underivable("it is differentiated outside the derivative that contains it")
        self.recorder.replace_from(self.start, [*bsyms, *self.after])
        self.bsyms = list(bsyms)

    def append(self, bsyms: Sequence[BoundSymbol]) -> None:
        """Append bound symbols to the recording, after all bound symbols that were recorded so far."""
        self.recorder.replace_from(len(self.recorder.bound_symbols), bsyms)

    def aliases_before(self, bsyms: Iterable[BoundSymbol]) -> list[list[str]]:
        """Return the names that bound symbols read before one of them defines the name, grouped by their memory."""
        defined: set[str] = set()
        groups: dict[int, dict[str, None]] = {}
        for bsym in bsyms:
            for proxy in bsym.inputs:
                memory = self.recorder.tensors.memory_of_name(proxy.name)
                if proxy.name not in defined and memory is not None:
                    groups.setdefault(memory, {})[proxy.name] = None
            defined |= {proxy.name for proxy in bsym.outputs}
        return [[*names] for names in groups.values()]

    def names(self) -> Iterator[str]:
        """Yield new names without end. No value of the recording has one of these names."""
        while True:
            yield self.recorder.tensors.next_name()

    def tensor(self, proxy: TensorProxy) -> torch.Tensor:
        """Return the recorded tensor of a proxy; for a proxy of an appended bound symbol, return a new tensor."""
        recorded = self.recorder.tensors.tensor_named(proxy.name)
        if recorded is not None:
            return recorded
        with without_recorder():
            return self.recorder.tensors.new_tensor(proxy)


@contextmanager
def without_recorder() -> Iterator[None]:
    """Run torch functions within this context without recording them."""
    with without_functions(), _disable_current_modes():
        yield
