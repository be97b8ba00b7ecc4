"""Compiled functions: a cache of programs, and a new trace if no program accepts the inputs."""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from threading import RLock
from typing import Any

from torch.utils._pytree import tree_flatten

from thunder_core.backend.cache.built_for import record_model
from thunder_core.backend.runtime.argument_order import AS_PASSED, ArgumentOrder
from thunder_core.backend.runtime.dispatch import ProgramIndex, RecentPrograms, Refusal, Route
from thunder_core.backend.runtime.eager_calls import CallsInEager, EagerFallback, initialization, is_uninitialized
from thunder_core.backend.runtime.observed_values import NewValues, ObservedValues
from thunder_core.backend.runtime.program import Program
from thunder_core.backend.runtime.program_compiler import ProgramCompiler
from thunder_core.backend.runtime.raising import RaisingCalls
from thunder_core.backend.runtime.refusals import (
    other_branch_error,
    other_input_error,
    paths_of_refused_numbers,
    programs_of_line,
    refusal_reason,
    refused_own_inputs,
    refused_sizes_of_one,
    too_many_values,
)
from thunder_core.backend.runtime.retraces import Retraces, subject_name
from thunder_core.backend.runtime.selector import Selector
from thunder_core.backend.runtime.tracers import is_forward_derivative, require_no_tracer
from thunder_core.backend.runtime.transformed import TransformedCall, is_within_transforms, transformed_state
from thunder_core.foundation.errors import ArtifactError, CannotReplay, DataDependent, OperationFailed
from thunder_core.foundation.options.compile_options import CompileOptions
from thunder_core.foundation.signal_handlers import ended_by_handlers
from thunder_core.tracing.capture.fakes.fake import Uninitialized
from thunder_core.tracing.capture.torch_facts.modes import is_recording, without_users_dispatch_modes
from thunder_core.tracing.ir.program_errors import ProgramRaised
from thunder_core.tracing.ir.retrace import FillsCache, Retrace, RunsInEager
from thunder_core.tracing.library import transformed_calls
from thunder_core.tracing.library.draws import forget_left_draws, take_back_draws
from thunder_core.tracing.library.objects import GuardFailed, UnexpectedValue, UntracedError

# Held while a function is traced: tracing changes the user's objects and restores them, invisibly to other traces.
COMPILING = RLock()
os.register_at_fork(after_in_child=COMPILING._at_fork_reinit)  # type: ignore[attr-defined]
ATTEMPTS = 16  # maximum attempts to trace a call while other threads change its guarded values
MAX_REASONS = 100  # the latest reasons that are kept


@dataclass(eq=False)
class Specializations:
    """The programs of a subject (a function or module), the most recently used first.

    `options` limit the number of programs, and when a program is compiled. `observed` are the numbers and sizes of
    earlier calls; a number or size that changes between calls, such as a learning rate or a length, becomes symbolic.
    If `uses_callers_settings` is True, the subject was compiled without settings, and a traced program that calls the
    subject inlines it with the program's own settings. `derivative_of` is the compiled function whose derivative the
    subject is, or None. `transformed` are the specializations of the subject within transforms of torch.func, by name.
    `of_forward` are the specializations of a module's `forward`, as the module's methods call it, and `inner` are the
    specializations of models within the module that generate for it. If every program refuses a call, the call is tried
    again with the arguments in the `argument_order`. `last` is the program of the latest call. `hits` counts the calls
    that found a program, and `misses` the traced calls.
    """

    subject: Callable[..., Any]
    compiler: ProgramCompiler
    options: CompileOptions
    programs: RecentPrograms = field(default_factory=RecentPrograms)
    last: Program | None = None
    hits: int = 0
    misses: int = 0
    observed: ObservedValues = field(default_factory=ObservedValues)
    new_values: NewValues = field(default_factory=NewValues)
    reasons: deque[str] = field(default_factory=lambda: deque(maxlen=MAX_REASONS))
    raising: RaisingCalls = field(init=False)
    retraces: Retraces = field(init=False)
    fallback: EagerFallback = field(init=False)
    in_eager: CallsInEager = field(init=False)
    index: ProgramIndex = field(default_factory=ProgramIndex)
    selector: Selector = field(default_factory=Selector)
    uses_callers_settings: bool = False
    derivative_of: Any = None
    transformed: dict[str, Specializations] = field(default_factory=dict)
    of_forward: Specializations | None = None
    inner: list[Specializations] = field(default_factory=list)
    argument_order: ArgumentOrder = AS_PASSED

    @property
    def specializations(self) -> Specializations:
        """The programs that a compiled function runs; a compiled method has this property too."""
        return self

    def __post_init__(self) -> None:
        self.in_eager = CallsInEager(self.subject, self.reasons)
        self.raising = RaisingCalls(self.subject, self.in_eager, not self.compiler.differs_from_eager)
        self.retraces = Retraces(self.subject)
        self.fallback = EagerFallback(self.subject, self.compiler, self.options, self.observed, self.reasons)

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a program that accepts the arguments, or compile a program.

        The program that ran last is tried first; if there are several programs, the selector chooses the first.
        """
        first = self.programs.first()
        program = self.selector.choose(self.subject, args, kwargs, first) if len(self.programs) > 1 else first
        route: Route | None = None
        try:
            while program is not None:
                prepared = None
                try:
                    inputs, outside = prepared = program.prepare(self.subject, args, kwargs)
                    result = program.run(inputs, outside)
                except ArtifactError:  # a stored program is damaged, which another program must not hide
                    raise
                except Exception as error:
                    # A path may run the user's code, so that `prepare` may raise anything: each error is a refusal.
                    if prepared is None or isinstance(error, UnexpectedValue):
                        route = route or Route(self.programs, self.index)
                        program = self._after_refusal(program, error, route)
                        continue
                    failure = error
                else:
                    self._note_hit(program, first, route, args, kwargs)
                    return result
                try:
                    return self.raising.call_after_failure(program, failure, args, kwargs)
                finally:
                    del failure  # its traceback refers to this frame
            return self._compile_and_call(args, kwargs, route or Route(self.programs, self.index))
        finally:
            if route is not None:
                forget_left_draws()
            del route  # the refusals have tracebacks that refer to this frame

    def _note_hit(
        self,
        program: Program,
        first: Program | None,
        route: Route | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        """Count a call that found its program, and make the program the first to try at the next call."""
        if route is not None:
            self._learn_route(program, route, args, kwargs)
        elif program is not first:
            self.programs.make_first(program)
        self.hits += 1
        self.last = program

    def _after_refusal(self, program: Program, error: Exception, route: Route) -> Program | None:
        """Return the program to try after a program has refused the call, and restore the random generators."""
        if isinstance(error, UntracedError):
            self.observed.lines_that_raised |= error.lines
        take_back_draws(self.subject)
        return route.after(program, error)

    def _learn_route(self, program: Program, route: Route, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record that a program accepted a call after the programs on the `route` refused it.

        The program is then tried first for similar calls. Nothing is recorded while another thread compiles: the
        records are only hints, and no call waits for them.
        """
        if not COMPILING.acquire(blocking=False):
            return
        try:
            self.index.add(program, route.features)
            self.selector.learn(program, route.refused_paths, self.subject, args, kwargs)
            self.programs.make_first(program)
        finally:
            COMPILING.release()

    def add(self, program: Program) -> None:
        """Add a program as the first to try."""
        self.programs.add_first(program)

    def _compile_and_call(self, args: tuple[Any, ...], kwargs: dict[str, Any], route: Route) -> Any:
        """Make a call that every program has refused; one thread compiles at a time.

        Programs and the user's own code run outside the lock, since they may start threads and wait for them. A program
        that writes to the user's objects, however, first runs while no thread traces, because tracing would undo its
        writes.
        """
        if self.is_transformable and is_within_transforms():
            return self._call_within_transforms(args, kwargs)
        if self.compiler.leaves_to_eager and is_forward_derivative():
            self.in_eager.note_forward_derivative()
            return self.subject(*args, **kwargs)
        require_no_tracer((*args, *kwargs.values()))
        with COMPILING:
            finish = self._compile_for_call(args, kwargs, route)
        try:
            return finish()
        finally:
            del finish  # the traceback of an error refers to this frame

    @property
    def writes_to_objects(self) -> bool:
        """Whether the program of the latest call writes to objects of the user."""
        return self.last is not None and self.last.has_effects

    @property
    def written_origins(self) -> frozenset[str]:
        """The paths of the tensors from outside that the program of the latest call writes to."""
        return frozenset() if self.last is None else self.last.written_origins

    @property
    def is_transformable(self) -> bool:
        """Whether the subject's variants for transforms of torch.func can be compiled like the subject."""
        return not (is_recording() or self.options.functional or self.options.symbolic)

    def _call_within_transforms(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call within transforms of torch.func by compiling the variant for the transforms.

        If a transform wraps parameters or buffers of a module, the state of the module becomes an argument.
        """
        state = transformed_state(self.subject)
        if state:
            return self._transformed_variant("function_of_state").call((state, args, kwargs), {})
        leaves, structure = tree_flatten((args, kwargs))
        return TransformedCall(self, self._transformed_variant, leaves, structure).run()

    def _transformed_variant(self, name: str) -> Specializations:
        if name not in self.transformed:
            function = getattr(transformed_calls, name)(self.subject)
            self.transformed[name] = Specializations(function, self.compiler, self.options)
        return self.transformed[name]

    def _compile_for_call(self, args: tuple[Any, ...], kwargs: dict[str, Any], route: Route) -> Callable[[], Any]:
        """Return the function that makes a call which every program has refused.

        If another thread has compiled a program in the meantime, the call is tried again. A call that is known to raise
        runs in eager PyTorch, and so does a call that no trace can represent. Otherwise, a program is compiled. Raises
        `WrongInputs` with `cache="same input"`.
        """
        if route.has_more:
            return partial(self.call, args, kwargs)
        if route.passes_arguments_differently:
            named = self.argument_order.as_in_example(args, kwargs)
            if named is not None:
                return partial(self.call, (), named)
        refusals = route.in_order()
        reasons = [refusal_reason(*refusal) for refusal in refusals]
        self._require_same_input(reasons)
        raised_before = self.raising.programs.find(args, kwargs)
        if raised_before is not None:
            self.hits += 1
            return partial(self.raising.call_as_before, raised_before, args, kwargs)
        if self.in_eager.accept(args, kwargs):
            self.hits += 1
            return partial(self.subject, *args, **kwargs)
        self._note_refusals(refusals, reasons)
        if self._falls_back_to_eager(refusals):
            return partial(self.subject, *args, **kwargs)
        self.misses += 1
        return self._first_call(args, kwargs, route, refusals, reasons)

    def _first_call(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        route: Route,
        refusals: Sequence[Refusal],
        reasons: Sequence[str],
    ) -> Callable[[], Any]:
        """Compile a program for a call; return the function that makes the call, such as running the program.

        These calls run in eager PyTorch: a call of a module with lazy parameters, a call that raises while it is
        traced, a call that computes a value for a cache of `functools.lru_cache`, and a call that no trace can
        represent.
        """
        if is_uninitialized(self.subject):
            return initialization(self.subject, self.compiler, args, kwargs)
        try:
            program, inputs, outside = self._compile_and_prepare(args, kwargs)
        except Uninitialized:
            return initialization(self.subject, self.compiler, args, kwargs)
        except (CannotReplay, DataDependent, OperationFailed) as error:
            if not self.observed.eager_lines:
                raise
            self.fallback.turn_on(error)
            return partial(self.subject, *args, **kwargs)
        except Retrace as request:
            return self._leave_to_eager(request, args, kwargs)
        except ProgramRaised as error:
            self.observed.note_values(error.observed)
            raised = error.with_traceback(None)
        else:
            if refusals:
                self.retraces.note(*refusals[0], reasons[0])
            self._keep_program(program, route, args, kwargs)
            self.last = program
            first_run = partial(self._run_first, program, inputs, outside, args, kwargs)
            return first_run() if program.has_effects else partial(run_and_finish, first_run)
        try:
            return partial(self.raising.call_first_time, raised, args, kwargs, keep=self.options.cache != "no caching")
        finally:
            del raised  # its traceback refers to this frame

    def _leave_to_eager(self, request: Retrace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any]:
        """Return the eager call for a program that fills caches, or that no trace can represent."""
        if isinstance(request.reason, RunsInEager):
            self.observed.note_values(request.reason.observed)
            self.in_eager.note(request.reason, keep=self.options.cache != "no caching")
        elif not isinstance(request.reason, FillsCache):
            raise request
        return partial(self.subject, *args, **kwargs)

    def _require_same_input(self, reasons: Sequence[str]) -> None:
        """Raise `WrongInputs` with these reasons if `cache="same input"` is set and there is a program."""
        if self.options.cache == "same input" and self.programs:
            raise other_input_error(reasons)

    def _note_refusals(self, refusals: Sequence[Refusal], reasons: Sequence[str]) -> None:
        """Record why a call is traced again, and which numbers and sizes differ."""
        self.reasons.extend(reasons)
        self.observed.changing.update(path for refusal in refusals for path in paths_of_refused_numbers(*refusal))
        self.observed.refused_sizes_of_one = frozenset(
            path for refusal in refusals for path in refused_sizes_of_one(*refusal)
        )

    def _falls_back_to_eager(self, refusals: Sequence[Refusal]) -> bool:
        """Whether a call runs in eager PyTorch, because too many values of tensors determine the program.

        Raises `DataDependent` if eager PyTorch would compute something else than the programs.
        """
        if self.options.data_dependent == "retrace":
            return self.fallback.is_on
        too_many = too_many_values(refusals)
        if too_many is None and not self.compiler.differs_from_eager:
            too_many = self.new_values.too_many(self.hits)
        if too_many is not None:
            self.fallback.leave_to_eager(too_many)
            self.new_values.by_line.clear()
            for program in programs_of_line(too_many.where, self.programs, refusals):
                self._drop(program)
        return self.fallback.is_on

    def _compile_and_prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Program, Any, Any]:
        """Compile a program for a call; return it with the inputs and the outside values that its prologue fetched.

        Compile again if another thread changed a guarded value, or if the compilation imported modules, because a
        program may read `sys.modules`.
        """
        self.observed.log.calls += 1
        for attempt in range(ATTEMPTS):
            modules = len(sys.modules)
            with record_model(subject_name(self.subject)), ended_by_handlers(), without_users_dispatch_modes():
                program = self.compiler(self.subject, args, kwargs, self.observed)
            try:
                return program, *program.prepare(self.subject, args, kwargs)
            except GuardFailed as refused:
                take_back_draws(self.subject)
                may_succeed = threading.active_count() > 1 or len(sys.modules) != modules
                if not may_succeed or attempt == ATTEMPTS - 1:
                    raise refused_own_inputs(program, refused) from None
                self.observed.log.fail_last("modules were imported, or another thread changed a value that is guarded")
        raise AssertionError("a call was never tried")

    def _run_first(
        self, program: Program, inputs: Any, outside: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Callable[[], Any]:
        """Run a new program; return a function that returns its result or raises its error.

        If the program reads another value from a tensor than tracing did, because its kernels round differently, the
        program is dropped. A new program then makes the call, and runs the function that reads the value in eager
        PyTorch. Raises `DataDependent` if transforms or lookasides may have changed the value, or with
        `data_dependent="retrace"`.
        """
        try:
            result = program.run(inputs, outside)
        except UntracedError as error:
            if error.lines - self.observed.lines_that_raised:
                take_back_draws(self.subject)
                return partial(self.call, args, kwargs)
            failure = error.error
        except UnexpectedValue as error:
            take_back_draws(self.subject)
            with COMPILING:
                self._drop(program)
                failed = other_branch_error(program, error)
                self.observed.log.fail_last(failed.what, failed.where)
                self.fallback.leave_rounded_value_to_eager(failed)
            return partial(self.call, args, kwargs)
        except Exception as error:
            failure = error
        else:
            return lambda: result
        try:
            return partial(self.raising.call_after_failure, program, failure, args, kwargs)
        finally:
            del failure

    def _keep_program(self, program: Program, route: Route, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep a program as the first to try, within the limits of the options."""
        if self.options.cache == "no caching":
            return
        self.add(program)
        self.observed.note(program)
        if self.options.data_dependent != "retrace":
            self.new_values.note(program, self.hits)
        self.raising.another_compiled()
        self.index.add(program, route.features)
        self.selector.note_compiled(program, args, kwargs)
        self.selector.learn(program, route.refused_paths, self.subject, args, kwargs)
        if len(self.programs) > self.options.max_programs:
            self.retraces.note_dropped(self.options.max_programs)
        while len(self.programs) > self.options.max_programs:
            self._drop(next(reversed(self.programs)))

    def _drop(self, program: Program) -> None:
        self.programs.pop(program, None)
        self.index.discard(program)
        self.selector.discard(program)


def run_and_finish(first_run: Callable[[], Callable[[], Any]]) -> Any:
    """Run a new program, and compute the call's result."""
    return first_run()()
