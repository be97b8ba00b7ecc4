"""A program: one specialization of a function, made of a prologue, a computation and an epilogue."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import torch

from thunder_core.backend.runtime.autograd_signature import AutogradSignature, SeparateResults
from thunder_core.backend.runtime.blame import add_source_line, leave_inference_modes, user_line
from thunder_core.backend.runtime.generate import executable, executable_trace
from thunder_core.backend.runtime.prologues.quick_prologue import quick_prologue_of
from thunder_core.backend.runtime.prologues.settled_prologue import Prepare
from thunder_core.backend.runtime.randomness import RandomState
from thunder_core.backend.runtime.retracing import caught_errors_of, depends_on_values, has_effects, may_run_again
from thunder_core.backend.runtime.tracers import blame_tracer
from thunder_core.backend.runtime.undo import Undo, inputs_written_before_last_check
from thunder_core.foundation.errors import SourceLine
from thunder_core.tracing.analysis.aliasing import names_written_to
from thunder_core.tracing.analysis.catchable_errors import CatchableErrors
from thunder_core.tracing.analysis.module_reads import ModuleReads
from thunder_core.tracing.capture.torch_facts.autocast import DEVICES, autocast_state
from thunder_core.tracing.capture.torch_facts.settings import Setting, settings_of
from thunder_core.tracing.capture.torch_facts.switches import switches_autocast
from thunder_core.tracing.ir.printer import Source, print_trace
from thunder_core.tracing.ir.requirement import Requirement, StatedConstraint
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.library.changes.kept_results import ComparingComputation
from thunder_core.tracing.library.changes.memory_words import CAN_WATCH
from thunder_core.tracing.library.objects import GuardFailed, UnexpectedValue, UntracedError

FUNCTION_NAMES = ("prologue", "computation", "epilogue")


@dataclass(frozen=True)
class Stage:
    """A trace after a step, and the seconds that the step took.

    For a backward, `has_cotangent` marks the results whose gradients are its inputs. The stages of a backward are
    consecutive.
    """

    trace: Trace
    seconds: float
    has_cotangent: tuple[bool, ...] = ()


class Derivative(Protocol):
    """The derivative of a program's computation."""

    @property
    def stages(self) -> Sequence[Stage]:
        """The stages of the tail and of the compiled backwards."""

    @property
    def signature(self) -> AutogradSignature:
        """The signature of the computation for its autograd node: its results, inputs, writes and layouts."""

    @property
    def separate_results(self) -> SeparateResults | None:
        """The results that can have backward passes of their own; None if they are unknown."""

    @property
    def body(self) -> Trace:
        """The computation that is differentiated."""

    def bridge(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """Return the computation as one operation of autograd; `forward` is its compiled forward."""

    def backward_trace(self) -> Trace:
        """Return the derived backward for all results, before transforms and executors."""

    def complete(self) -> None:
        """Compile the backward for all results if no backward was compiled yet."""

    def complete_for_artifact(self) -> None:
        """Compile the backwards that an artifact needs, because the artifact cannot compile them."""


@dataclass(eq=False)
class Program:
    """A function for the inputs that its prologue accepts; `stages` are the stages of its traces.

    If `derivative` is set, the computation also returns the tensors that the backward reads. Otherwise,
    `no_backward_reason` is the reason why the program has no backward of its own, and PyTorch's autograd records the
    operations if gradients are needed.

    `prepare(subject, args, kwargs)` is the prologue: it checks the guards and returns the inputs of the computation and
    of the epilogue. It raises `GuardFailed`, or any exception that a path raises; `guards[n]` is the requirement of
    check number n. A program that expects values of tensors may find other values while it runs. `observed` has the
    numbers and sizes that the program was traced with, by their paths. `constant_because` is the reason why sizes that
    should be symbolic are constant, or empty; `shortfalls` are the sizes and numbers of which the program supports only
    some values. At `caught_lines`, an operation may raise an error because of tensor values, and the program catches
    the error; the program was traced for values without such an error. Calls skip the `module_reads` of the prologue
    while the module is unchanged (`QuickPrologue`).
    """

    stages: tuple[Stage, ...]
    guards: tuple[Requirement, ...] = ()
    sharp_edges: tuple[Any, ...] = ()
    derivative: Derivative | None = None
    no_backward_reason: str = ""
    observed: Mapping[str, int | float] = field(default_factory=dict)
    constant_because: str = ""
    shortfalls: tuple[Any, ...] = ()
    caught_lines: frozenset[SourceLine] = frozenset()
    module_reads: ModuleReads | None = field(default=None, repr=False)
    _written: tuple[int, ...] | None = field(init=False)
    _caught: CatchableErrors | None = field(init=False)
    prepare: Prepare = field(init=False, repr=False)
    _computation: Callable[..., Any] = field(init=False, repr=False)
    _epilogue: Callable[..., Any] = field(init=False, repr=False)
    _switches_autocast: bool = field(init=False, repr=False)
    _settings: tuple[Setting, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._written = self.written_before_last_check()
        self._caught = self.caught_errors()
        self._switches_autocast = self.switches_autocast()
        self._settings = self.settings_changed()
        forward = self.build_function("computation")
        if self.derivative is None:
            self._computation = ComparingComputation(self, forward).first_call
        else:
            self._computation = self.derivative.bridge(forward)
        self._epilogue = self.build_function("epilogue")
        self.prepare = self.build_prologue()

    def build_prologue(self) -> Prepare:
        """Return the function that checks the guards, and that skips reads of an unchanged module where possible."""
        prepare = self.build_function("prologue")
        if self.module_reads is None or not CAN_WATCH:
            return prepare
        return quick_prologue_of(self, prepare, self.last("prologue"), self.module_reads)

    def replace_prologue(self, prepare: Prepare) -> None:
        """Let later calls check the guards with another function, which accepts the same calls."""
        self.prepare = prepare

    def replace_computation(self, computation: Callable[..., Any]) -> None:
        """Let later calls run another function, which computes the same."""
        self._computation = computation

    def written_before_last_check(self) -> tuple[int, ...] | None:
        """Return the indices of the inputs that may be written to up to and including the last check of a value.

        Returns None for a program that checks no values.
        """
        return inputs_written_before_last_check(self.last("computation"))

    def caught_errors(self) -> CatchableErrors | None:
        """Return the errors that the computation may raise and that the program catches; None if there are none."""
        return caught_errors_of(self.traces("computation")[0], self.last("computation"), self.caught_lines)

    @cached_property
    def has_effects(self) -> bool:
        """Whether the epilogue writes to the user's objects."""
        return has_effects(self.last("epilogue"))

    @cached_property
    def written_origins(self) -> frozenset[str]:
        """The paths of the tensors from outside that the computation writes to."""
        computation = self.last("computation")
        names = names_written_to(computation)
        return frozenset(computation.origins.get(proxy.name, "") for proxy in computation.inputs if proxy.name in names)

    @cached_property
    def is_repeatable(self) -> bool:
        """Whether a call whose computation failed should run again in eager PyTorch, for its side effects."""
        return may_run_again(self.traces("computation")[0], self.last("epilogue"))

    def switches_autocast(self) -> bool:
        """Return whether the computation changes autocast's state."""
        return any(map(switches_autocast, self.last("computation").bound_symbols))

    def settings_changed(self) -> tuple[Setting, ...]:
        """Return the settings of PyTorch that the computation changes."""
        return settings_of(self.last("computation").bound_symbols)

    @cached_property
    def constraints(self) -> tuple[StatedConstraint, ...]:
        """The guards that are constraints on symbols."""
        return tuple(guard for guard in self.guards if isinstance(guard, StatedConstraint))

    def guard_of(self, error: Exception) -> Requirement | None:
        """Return the guard that refused a call with this error; None for another error."""
        number = error.number if isinstance(error, GuardFailed) else -1
        return self.guards[number] if 0 <= number < len(self.guards) else None

    def source(self, name: str) -> Source:
        """Return the printed last stage of a trace (`prologue`, `computation` or `epilogue`), which runs."""
        return print_trace(self.last(name))

    def build_function(self, name: str) -> Callable[..., Any]:
        """Return the function of the last stage of a trace."""
        return executable_trace(self.last(name)) if name == "computation" else executable(self.source(name), name)

    def stages_of(self, name: str) -> list[Stage]:
        """Return the stages of the trace with a name. Stages of several backwards are consecutive, the latest last."""
        parts = self.derivative.stages if self.derivative is not None else ()
        stages = [stage for stage in (*self.stages, *parts) if stage.trace.name == name]
        if name == "backward" and not stages and self.derivative is not None:
            return [Stage(self.derivative.backward_trace(), 0.0)]
        return stages

    def traces(self, name: str) -> list[Trace]:
        """Return the trace with a name after each stage; the last trace is the trace that runs."""
        return [stage.trace for stage in self.stages_of(name)]

    def last(self, name: str) -> Trace:
        """Return the last stage of the trace with a name, which is the trace that runs."""
        return self.traces(name)[-1]

    def compute(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Run the computation only."""
        outputs: tuple[Any, ...] = self._computation(*inputs)
        return outputs

    def run(self, inputs: tuple[Any, ...], outside: tuple[Any, ...]) -> Any:
        """Run the computation and then the epilogue; return the function's result.

        If the computation switches autograd, autocast or inference mode, or changes a setting of PyTorch, an error
        restores the state before the call. The error has a note with the user's source line. Raises `UnexpectedValue`,
        with everything as it was before the call, if a value differs from the value that the program expects, and
        `UntracedError` for an error that the program may catch.
        """
        grad = torch.is_grad_enabled()
        undo = self._make_undo(inputs)
        random = RandomState.now(inputs) if self._caught is not None and self._caught.draws else None
        autocast = AutocastState() if self._switches_autocast else None
        restores = [setting.keep() for setting in self._settings]
        try:
            with torch._C.DisableTorchFunctionSubclass():  # tracing called `__torch_function__` of subclasses
                results = self._computation(*inputs)
            return self._epilogue(*outside, *results)
        except BaseException as error:
            leave_inference_modes(error)
            torch.set_grad_enabled(grad)
            if autocast is not None:
                autocast.put_back()
            for restore in restores:
                restore()
            blame_tracer(error)
            if isinstance(error, UnexpectedValue) and undo is not None:
                undo.put_back()
                raise
            add_source_line(error, self.last("computation"))
            self._require_uncaught(error, random, undo)
            raise

    def _make_undo(self, inputs: tuple[Any, ...]) -> Undo | None:
        """Return the means to undo writes to inputs; None if no value is checked and no error is caught."""
        before_caught = self._caught.written if self._caught is not None else ()
        if self._written is None and not before_caught:
            return None
        return Undo(inputs, sorted({*(self._written or ()), *before_caught}))

    def _require_uncaught(self, error: BaseException, random: RandomState | None, undo: Undo | None) -> None:
        """Raise `UntracedError` for an error that the program may catch, after restoring inputs and generators."""
        if self._caught is None or not isinstance(error, Exception) or not depends_on_values(error):
            return
        if lines := self._caught.at(self.lines_of(error)):
            if undo is not None:
                undo.put_back()
            if random is not None:
                random.put_back()
            raise UntracedError(error, lines) from None

    def lines_of(self, error: BaseException) -> frozenset[SourceLine] | None:
        """Return the user's lines from which an error of the computation may come; None if they are unknown."""
        line = self.line_of(error)
        return None if line is None else frozenset({line})

    def line_of(self, error: BaseException) -> SourceLine | None:
        """Return the user's source line of the bound symbol of the computation that raised."""
        return user_line(error, self.last("computation"))


class AutocastState:
    """The state of autocast when the object was made."""

    def __init__(self) -> None:
        self.state = autocast_state()
        self.caches = torch.is_autocast_cache_enabled()
        self.depth = depth()

    def put_back(self) -> None:
        """Restore the state."""
        for device, (enabled, dtype) in zip(DEVICES, self.state, strict=True):
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)
        torch.set_autocast_cache_enabled(self.caches)
        for _ in range(depth() - self.depth):
            torch.autocast_decrement_nesting()
        if not self.depth:
            torch.clear_autocast_cache()


def depth() -> int:
    """Return the number of open autocast contexts."""
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()
