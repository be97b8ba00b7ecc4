"""A program: one specialization of a function, made of a prologue, a computation and an epilogue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from thunder_core.ir.printer import Source, print_trace
from thunder_core.ir.trace import Trace
from thunder_core.run.blame import leave_inference_modes, tell_line
from thunder_core.run.generate import executable

RUNS = {"prepare": "prologue", "_computation": "computation", "_epilogue": "epilogue"}


@dataclass(frozen=True)
class Stage:
    """A trace as one step left it, and the seconds that the step took."""

    trace: Trace
    seconds: float


class Derivative(Protocol):
    """The derivative of a program's computation."""

    @property
    def stages(self) -> Sequence[Stage]:
        """How the backwards that were compiled came about."""

    def bridge(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """What computes the results, with `forward` for the computation, as one operation of autograd."""

    def backward_trace(self) -> Trace:
        """The backward for all results, as it was derived."""


@dataclass(frozen=True, eq=False)
class Program:
    """What runs for the inputs that its prologue takes; `stages` tell how it came about.

    With a `derivative`, the computation also returns what its backward reads; without one, autograd records what it
    does if it is to be differentiated, for the reason `recorded`.

    `prepare(subject, args, kwargs)` is the prologue: it checks the guards and returns what the computation and the
    epilogue need, or raises `Refused`, or what a path raises.
    """

    stages: tuple[Stage, ...]
    guards: tuple[str, ...] = ()
    sharp_edges: tuple[Any, ...] = ()
    derivative: Derivative | None = None
    recorded: str = ""
    prepare: Callable[[Any, tuple[Any, ...], dict[str, Any]], tuple[Any, Any]] = field(init=False, repr=False)
    _computation: Callable[..., Any] = field(init=False, repr=False)
    _epilogue: Callable[..., Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for attribute, name in RUNS.items():
            object.__setattr__(self, attribute, executable(self.source(name), name))
        if self.derivative is not None:
            object.__setattr__(self, "_computation", self.derivative.bridge(self._computation))

    def source(self, name: str) -> Source:
        """The text that runs."""
        return print_trace(self.last(name))

    def traces(self, name: str) -> list[Trace]:
        """Each stage of the trace of that name, the last one being what runs."""
        found = [stage.trace for stage in self.stages if stage.trace.name == name]
        if name == "backward" and self.derivative is not None:
            found = [stage.trace for stage in self.derivative.stages]
            return found or [self.derivative.backward_trace()]
        return found

    def last(self, name: str) -> Trace:
        """The stage that runs."""
        return self.traces(name)[-1]

    def compute(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """The computation alone."""
        outputs: tuple[Any, ...] = self._computation(*inputs)
        return outputs

    def run(self, inputs: tuple[Any, ...], outside: tuple[Any, ...]) -> Any:
        """The computation and then the epilogue; the result is what the function returns.

        Where the computation switches autograd or inference mode on or off, an error on the way puts it back; it comes
        with a note of the user's line.
        """
        grad = torch.is_grad_enabled()
        try:
            return self._epilogue(*outside, *self._computation(*inputs))
        except BaseException as error:
            leave_inference_modes(error)
            torch.set_grad_enabled(grad)
            tell_line(error, self.last("computation"))
            raise
