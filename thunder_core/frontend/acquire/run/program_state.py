"""The state of a program in one run: the process before it, its modules, its output, and the state after its calls."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import torch

from thunder_core.foundation.errors import SourceLine
from thunder_core.frontend.acquire.outside.sharp import SharpEdge
from thunder_core.frontend.acquire.works import TracedWork
from thunder_core.tracing.ir.attention import FlexAttention
from thunder_core.tracing.ir.proxy import Proxy
from thunder_core.tracing.ir.retrace import ReadsCondition
from thunder_core.tracing.library.changes import tensor_class


@dataclass(frozen=True)
class ProcessBefore:
    """The state of the process before the program runs.

    `started` is the result of `time.time_ns()`. `handled` is the exception that the caller handles. `replaced_entries`
    are the entries of PyTorch's tensor classes that the user has replaced.
    """

    started: int = field(default_factory=time.time_ns)
    handled: BaseException | None = field(default_factory=sys.exception)
    streams: tuple[Any, ...] = field(default_factory=lambda: (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__))
    warning_filters: Any = field(default_factory=lambda: warnings.filters)
    replaced_entries: tensor_class.Replaced = field(default_factory=tensor_class.replaced_entries)

    def has_stream(self, stream: object) -> bool:
        """Whether a stream is one of the process's output streams from before the program."""
        return any(stream is own_stream for own_stream in self.streams)


class RunningModules:
    """The modules whose calls are running, outermost first, by their names in the traced module."""

    def __init__(self, subject: Callable[..., Any]) -> None:
        named = subject.named_modules() if isinstance(subject, torch.nn.Module) else ()
        self._names: Mapping[int, str] = {id(module): name for name, module in named}
        self._running: list[str] = []

    @property
    def innermost(self) -> str:
        """The name of the innermost module; empty outside of all modules."""
        return self._running[-1] if self._running else ""

    def name_of(self, module: object) -> str | None:
        """Return the name of an inner module of the traced module; None or empty for another module."""
        return self._names.get(id(module))

    def enter(self, name: str) -> None:
        """Note that the call of a module starts."""
        self._running.append(name)

    def leave(self) -> None:
        """Note that the call of the innermost module has ended."""
        self._running.pop()


class NotedEdges:
    """The sharp edges that were noted while a program ran. A `loud` edge is reported even if edges are allowed."""

    def __init__(self) -> None:
        self._lines: dict[str, SourceLine | None] = {}
        self._loud: set[str] = set()

    def note(self, what: str, where: SourceLine | None, *, loud: bool = False) -> None:
        """Note a sharp edge; the first line of each edge is kept."""
        self._lines.setdefault(what, where)
        if loud:
            self._loud.add(what)

    @property
    def has_loud(self) -> bool:
        """Whether a loud edge was noted."""
        return bool(self._loud)

    def in_order(self) -> tuple[SharpEdge, ...]:
        """Return the sharp edges in the order in which they were noted."""
        return tuple(SharpEdge(what, where, what in self._loud) for what, where in self._lines.items())


@dataclass
class TraceNotes:
    """Facts about bound symbols that the trace keeps for later passes.

    `checkpointed_ranges` are the ranges of the bound symbols of checkpointed functions. `kept_operations` maps names to
    the operations that a policy of selective checkpointing saves, and `attentions` maps results to attentions.
    """

    checkpointed_ranges: list[range] = field(default_factory=list)
    kept_operations: dict[str, frozenset[str]] = field(default_factory=dict)
    attentions: dict[str, FlexAttention] = field(default_factory=dict)


@dataclass
class CallState:
    """The state that calls of a program leave for its later calls.

    - `seeds`: the seed of each generator that the program has seeded, by its `id`; None for an unknown state.
    - `contexts`: the contexts that the program has entered, each with the name of its bound symbol.
    - `works`: the unfinished works of collectives.
    - `script_methods`: the running methods of modules of TorchScript.
    - `capturing_hooks`: the hooks that collect the outputs of modules, by the `id` of the modules.
    - `recorded_arms`: the branches whose two arms are recorded.
    - `entered_codes`: the codes of the functions that were entered, while they are collected.
    - `interrupt`: the `KeyboardInterrupt` that the program itself has raised.
    """

    seeds: dict[int, int | None] = field(default_factory=dict)
    contexts: dict[int, tuple[Any, Proxy]] = field(default_factory=dict)
    works: list[TracedWork] = field(default_factory=list)
    script_methods: list[Any] = field(default_factory=list)
    capturing_hooks: dict[int, list[Callable[..., Any]]] = field(default_factory=dict)
    recorded_arms: list[RecordedArms] = field(default_factory=list)
    entered_codes: set[CodeType] | None = None
    interrupt: BaseException | None = None
    asyncio_depth: int = 0

    @contextmanager
    def collect_entered_codes(self) -> Iterator[set[CodeType]]:
        """Yield a set that receives each code object of the program that is entered within the `with` block."""
        before, codes = self.entered_codes, set[CodeType]()
        self.entered_codes = codes
        try:
            yield codes
        finally:
            self.entered_codes = before if before is None else before | codes

    @contextmanager
    def run_event_loop(self) -> Iterator[None]:
        """Note that `asyncio.run` is running within the `with` block."""
        self.asyncio_depth += 1
        try:
            yield
        finally:
            self.asyncio_depth -= 1

    def note_interrupt(self, error: BaseException) -> None:
        """Store a `KeyboardInterrupt` that the program itself raises, to distinguish it from the user's Ctrl-C."""
        self.interrupt = error


@dataclass(frozen=True)
class RecordedArms:
    """A branch whose arms are recorded.

    `copied` are tensors that an arm passes through unchanged, so that the arm returns a clone of each. In eager
    PyTorch, the result is the tensor itself. `request` asks for a trace that reads the condition.
    """

    request: ReadsCondition
    copied: tuple[torch.Tensor, ...]
    results: tuple[torch.Tensor, ...]

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The tensors of which two may be the same object in eager PyTorch."""
        return (*self.copied, *self.results)
