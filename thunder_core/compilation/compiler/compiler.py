"""The compiler: it traces a call, transforms and differentiates the trace, claims it, and returns a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from thunder_core.backend.claiming.claim import claim
from thunder_core.backend.claiming.executor import Executor, find_executor
from thunder_core.backend.claiming.free import free_after_last_use
from thunder_core.backend.claiming.withholding import withholding
from thunder_core.backend.parallel.compiling import compiling
from thunder_core.backend.runtime.agreement import start_answering
from thunder_core.backend.runtime.observed_values import ObservedValues
from thunder_core.backend.runtime.program import Program
from thunder_core.backend.runtime.retraces import warn_of
from thunder_core.compilation.compiler.attempts import TracingAttempts
from thunder_core.compilation.compiler.call_checks import (
    require_accepted_call,
    require_all_kernels,
    require_for_this_call,
    require_layouts_of_eager,
)
from thunder_core.compilation.compiler.cleanup import CLEANUP_TRANSFORMS
from thunder_core.compilation.compiler.eager_pieces import EagerFunctions
from thunder_core.compilation.compiler.executor_names import name_for_pickle
from thunder_core.compilation.compiler.nested import NestedCallRecorder
from thunder_core.compilation.compiler.program_assembly import assemble_program
from thunder_core.compilation.compiler.stage_log import StageLog
from thunder_core.compilation.compiler.symbolic_warnings import out_of_range, warn_of_shortfalls
from thunder_core.compilation.compiler.transformation import checked_trace
from thunder_core.foundation.errors import DataDependent, EnvironmentLacks, UnknownName
from thunder_core.foundation.options.compile_options import CompileOptions
from thunder_core.foundation.options.symbolic_arguments import SymbolicArgument
from thunder_core.frontend.acquire.acquire import acquire, add_constraints
from thunder_core.frontend.acquire.assembly import Acquired
from thunder_core.frontend.acquire.named import named_values
from thunder_core.frontend.acquire.outside.symbolic import CONSTANT, Symbolic, arguments_differ
from thunder_core.frontend.acquire.retracing import retrace
from thunder_core.frontend.acquire.run.call_attempts import CallAttempts
from thunder_core.frontend.acquire.run.options import RunOptions
from thunder_core.frontend.interpreter.lookup import forget_lookups
from thunder_core.passes.autodiff.program_derivative import (
    ProgramDerivative,
    Underivable,
    claim_forward,
    differentiate_program,
    is_differentiable,
)
from thunder_core.passes.autodiff.rules import with_rules
from thunder_core.passes.recipe import Transform
from thunder_core.tracing.analysis.control_flow import transform_nested
from thunder_core.tracing.capture.symbolic.all_sizes import size_oblivious
from thunder_core.tracing.capture.torch_facts.compiled_call import WHY_RECORDED, is_tracked_call
from thunder_core.tracing.capture.torch_facts.quiet_attempts import quiet_attempt
from thunder_core.tracing.extension.leaving_out import drop_left_out
from thunder_core.tracing.extension.lookaside import Lookaside
from thunder_core.tracing.extension.transform import rewrite_before_claiming
from thunder_core.tracing.ir.check import check_trace
from thunder_core.tracing.ir.constant_sizes import with_constant_sizes
from thunder_core.tracing.ir.dump import Dump, NoSink, Sink, requested_dump
from thunder_core.tracing.ir.retrace import MeetsSymbol, Retrace
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace, with_number_inputs
from thunder_core.tracing.library.collection import pause_collection
from thunder_core.tracing.library.saved_tensors_hooks import without_saved_tensors_hooks

AUTOGRAD_OFF = "autograd was off when it was traced"
NOTHING_REQUIRES_GRAD = "nothing that it reads requires a gradient"
ANOMALY_DETECTION = "anomaly detection was on when it was traced"


@dataclass(frozen=True)
class Compiler:
    """A compiler with transforms in their order, executors in the user's order, other options, and lookasides.

    If `device` is set, programs are compiled for this device, even if the model and the arguments are on another device
    and the machine does not have `device`. All tensors are then treated as if they were on `device`; if `moves_from` is
    set, only the tensors on the device `moves_from` are treated in this way. `dump` is the folder for the stages of
    each program. Pickles do not contain `dump`, because it does not affect programs.
    """

    transforms: tuple[Transform, ...]
    executors: tuple[Executor, ...]
    options: CompileOptions
    device: torch.device | None = None
    lookasides: tuple[Lookaside, ...] = ()
    dump: Dump | None = field(default=None, compare=False)
    moves_from: torch.device | None = None

    @property
    def settings(self) -> Compiler:
        """The settings of the compiler: the compiler itself."""
        return self

    @property
    def claimants(self) -> tuple[Executor, ...]:
        """The executors, each restricted to the modules from which the user has not excluded it."""
        return withholding(self.executors, self.options.without)

    @property
    def differs_from_eager(self) -> bool:
        """Whether programs may compute other values than eager PyTorch: with lookasides or a parallel transform."""
        return bool(self.lookasides) or any(transform.is_parallel for transform in self.transforms)

    @property
    def leaves_cache_fills_to_eager(self) -> bool:
        """Whether eager PyTorch makes the calls that compute a value for a cache of `functools.lru_cache`."""
        return self.device is None and not (self.differs_from_eager or self.options.functional)

    @property
    def leaves_to_eager(self) -> bool:
        """Whether eager PyTorch makes the calls that no trace can represent."""
        return self.leaves_cache_fills_to_eager and self.options.data_dependent != "error"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the executors by name; raise `CannotReplay` if such a name belongs to another executor."""
        names = tuple(map(name_for_pickle, self.executors))
        return compiler_by_names, (self.transforms, names, self.options, self.device, self.lookasides)

    def __call__(
        self,
        subject: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        observed: ObservedValues | None = None,
    ) -> Program:
        """Trace the subject on these arguments and compile its trace.

        The program has symbolic numbers and sizes if that is possible and the options allow it.
        """
        named, constant = self._named_arguments(subject, args, kwargs)
        observed = observed or ObservedValues()
        pending = self._attempts(observed, named, constant, args, kwargs)
        attempts = TracingAttempts(subject, pending, CallAttempts(observed.log), counts=self._may_count)

        def attempt(symbolic: Symbolic) -> Program:
            attempts.recording.tried = symbolic.description
            reason = "" if symbolic.sizes else attempts.reason
            program = self._compile(subject, args, kwargs, symbolic, reason, observed, attempts.recording)
            if symbolic.sizes and self.device is None:
                require_accepted_call(program, subject, args, kwargs)
            if symbolic.probing and not symbolic.is_constant:
                raise Retrace(MeetsSymbol(is_complete=True))
            attempts.recording.end()
            return program

        # No garbage is collected after tracing, because a collection would scan all objects. Executors that compile
        # regions may leave garbage.
        may_collect = any(executor.fuses_regions for executor in self.executors)
        try:
            with nullcontext() if may_collect else pause_collection():
                program = retrace(attempt, attempts.pop_next(), attempts.after)
        except DataDependent as error:
            if attempts.refused_value in (None, error):
                raise
            raise attempts.refused_value from error
        finally:
            forget_lookups()
        warn_of_shortfalls(subject, named, program)
        return program

    @property
    def _may_count(self) -> bool:
        """Whether sizes that depend on tensor values may be symbols.

        They may if `data_dependent="error"` forbids the program to read tensor values, if all executors accept symbolic
        sizes, and if no device is set.
        """
        takes_sizes = all(executor.symbolic_sizes for executor in self.executors)
        return self.options.data_dependent == "error" and self.device is None and takes_sizes

    def _named_arguments(
        self, subject: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Mapping[str, SymbolicArgument], frozenset[str]]:
        """Return the sizes and numbers that the user declares symbolic, by path, and the paths that are constant.

        If a value is outside the range of its name, the name has no effect, and a warning reports the value. If the
        name is only a hint, the value is a constant, without a warning.
        """
        values = named_values(self.options.symbolic, subject, args, kwargs)
        outside = [value for value in values if not value.is_in_range]
        if named_outside := [value for value in outside if not value.argument.is_conditional]:
            warn_of(subject, *out_of_range(named_outside))
        constant = frozenset(value.path for value in outside if value.argument.is_conditional)
        return {value.path: value.argument for value in values if value.is_in_range}, constant

    def _attempts(
        self,
        observed: ObservedValues,
        named: Mapping[str, SymbolicArgument],
        constant: frozenset[str],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> list[Symbolic]:
        """Return the attempts to trace a call, with and without symbolic values. The first successful attempt is used.

        The first attempt is a probe, which finds out whether the program reads any value that may be symbolic. The
        probe is omitted if the arguments already differ from earlier calls, or if the user requested symbolic values.
        """
        arguments = self.options.cache == "symbolic values"
        is_requested = arguments or bool(named)
        if not (is_requested or observed.has_observations):
            return [CONSTANT]
        numbers = [] if is_requested else [Symbolic(observed)]
        executors_take_sizes = all(executor.symbolic_sizes for executor in self.executors)
        if not is_requested and not (observed.sizes_may_be_symbolic and executors_take_sizes):
            return [*numbers, CONSTANT]
        probes = [] if is_requested or arguments_differ(observed, args, kwargs) else [Symbolic(observed, probing=True)]
        general = Symbolic(observed, named, constant, arguments=arguments, sizes=True)
        first = general.with_changes(avoid_one_hints=True, real_hints_for=observed.refused_sizes_of_one)
        return [*probes, first, general, general.with_changes(oblivious=False), *numbers, CONSTANT]

    def _compile(
        self,
        subject: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        symbolic: Symbolic,
        constant_because: str,
        observed: ObservedValues,
        attempts: CallAttempts,
    ) -> Program:
        """Return the program of a call; raise `Retrace` if the program would accept only other calls."""
        dump = self.dump or requested_dump(None)
        sink: Sink = dump.program(subject) if dump else NoSink()
        attempts.sink, log = sink, StageLog(sink)
        oblivious_mode = size_oblivious() if symbolic.sizes and symbolic.oblivious else nullcontext()
        quiet = quiet_attempt() if symbolic.sizes else nullcontext()
        with compiling(), without_saved_tensors_hooks(), oblivious_mode, quiet:
            options = replace(self._run_options(symbolic, observed), attempts=attempts)
            acquired, trace = self._acquire(subject, args, kwargs, options, log)
            start_answering(trace)
            derivative, why_recorded, underivable = self._differentiate(trace, sink)
            if acquired.sizes is not None:
                require_for_this_call(acquired.sizes)  # before anything is compiled
            forward = self._claim(trace, derivative, underivable, log)
            if symbolic.sizes and not (symbolic.is_requested or symbolic.named):
                require_all_kernels(log.stages)
            if derivative and (body := derivative.adopt_inputs(forward.inputs)) is not None:
                log.note(body)
        if acquired.sizes is not None:
            require_for_this_call(acquired.sizes)
        acquired = add_constraints(acquired, forward.inputs)
        if acquired.sizes is not None:
            acquired.sizes.environment.close()
            log.add(acquired.prologue)
        with pause_collection():
            log.note(check_trace(free_after_last_use(forward)))
            return assemble_program(acquired, derivative, why_recorded, symbolic, log.stages, constant_because)

    def _run_options(self, symbolic: Symbolic, observed: ObservedValues) -> RunOptions:
        """Return the options for tracing a call. Only a program for this machine may read values of tensors."""
        may_evaluate_tensor_values = self.options.data_dependent != "error" and self.device is None
        calls_in_eager = may_evaluate_tensor_values and bool(observed.eager_lines)
        return RunOptions(
            device=self.device,
            moves_from=self.moves_from,
            may_evaluate_tensor_values=may_evaluate_tensor_values,
            evaluates_tensor_values=may_evaluate_tensor_values and not symbolic.sizes,
            symbolic=symbolic,
            functional=self.options.functional,
            sharp_edges=self.options.sharp_edges,
            nested=NestedCallRecorder(self),
            lookasides=self.lookasides,
            differs_from_eager=self.differs_from_eager,
            leaves_cache_fills_to_eager=self.leaves_cache_fills_to_eager,
            leaves_to_eager=self.leaves_to_eager,
            eager_functions=EagerFunctions(self, observed.eager_lines) if calls_in_eager else None,
            lines_that_raised=observed.lines_that_raised if may_evaluate_tensor_values else frozenset(),
        )

    def _acquire(
        self,
        subject: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: RunOptions,
        log: StageLog,
    ) -> tuple[Acquired, Trace]:
        """Trace a call; return the acquired traces, and the computation after the transforms."""
        with pause_collection():
            acquired = acquire(subject, args, kwargs, options)
            if acquired.sizes is not None:
                acquired = replace(acquired, computation=with_constant_sizes(acquired.computation))
            log.note(acquired.computation)
            log.add(acquired.prologue)
            log.add(acquired.epilogue)
            trace = acquired.computation
            if acquired.sizes is not None:
                require_for_this_call(acquired.sizes)
                require_layouts_of_eager(trace, acquired.sizes, options.symbolic)
            for transform in self.transforms:
                changed = transform_nested(trace, transform)
                if changed is not trace:  # a transform that changes only the model adds no stage
                    trace = log.note(checked_trace(transform, changed))
        return acquired, trace

    def _claim(
        self, trace: Trace, derivative: ProgramDerivative | None, underivable: BoundSymbol | None, log: StageLog
    ) -> Trace:
        """Return the computation, or its forward if it has a derivative, with an executor for each bound symbol."""
        if derivative is None:
            trace = self._rewrite(trace, log, is_recorded=is_differentiable(trace))
            return with_number_inputs(log.note(with_rules(claim(trace, self.claimants), underivable)))
        for step in derivative.steps:
            log.note(check_trace(step))
        if derivative.tail:
            log.sink.write(derivative.tail)
        forward = self._rewrite(derivative.differentiated.forward, log)
        return with_number_inputs(log.note(claim_forward(derivative, forward)))

    def _rewrite(self, trace: Trace, log: StageLog, *, is_recorded: bool = False) -> Trace:
        """Apply the rewrites of the transforms that run right before executors claim the trace.

        If autograd records the trace (`is_recorded`), parallel transforms do not rewrite it: their operators have
        derivatives, which communicate the gradients, but the collectives that replace the operators have none.
        """
        transforms = [transform for transform in self.transforms if not (is_recorded and transform.is_parallel)]
        return rewrite_before_claiming(
            trace, transforms, lambda transform, changed: log.note(checked_trace(transform, changed))
        )

    def _differentiate(self, trace: Trace, sink: Sink) -> tuple[ProgramDerivative | None, str, BoundSymbol | None]:
        """Return the derivative of a trace, an empty reason and None.

        If the trace has no derivative, return None, the reason, and the bound symbol for which PyTorch has no
        derivative formula, or None if the reason is another.
        """
        if torch.is_grad_enabled() and any(map(is_tracked_call, trace.bound_symbols)):
            return None, WHY_RECORDED, None
        if not is_differentiable(trace):
            return None, NOTHING_REQUIRES_GRAD if torch.is_grad_enabled() else AUTOGRAD_OFF, None
        if torch.is_anomaly_enabled():
            return None, ANOMALY_DETECTION, None
        try:
            budget, cleanup = self.options.memory_budget, drop_left_out(CLEANUP_TRANSFORMS, self.options.without)
            derivative = differentiate_program(trace, self.claimants, cleanup, budget, sink, self.transforms)
            return derivative, "", None
        except Underivable as reason:
            return None, str(reason), reason.missing_formula


@dataclass(frozen=True)
class CompilerLackingExecutor:
    """A placeholder for a pickled compiler while this process lacks one of its executors; its calls raise an error."""

    transforms: tuple[Transform, ...]
    executors: tuple[str, ...]
    options: CompileOptions
    device: torch.device | None
    lookasides: tuple[Lookaside, ...] = ()

    @property
    def settings(self) -> Compiler:
        """The compiler, if all its executors exist now; otherwise, raise the error of the missing executor."""
        executors = tuple(map(find_executor, self.executors))
        return Compiler(self.transforms, executors, self.options, self.device, self.lookasides)

    @property
    def differs_from_eager(self) -> bool:
        """Whether programs may compute other values than eager PyTorch: with lookasides or a parallel transform."""
        return bool(self.lookasides) or any(transform.is_parallel for transform in self.transforms)

    @property
    def leaves_to_eager(self) -> bool:
        """Whether eager PyTorch makes the calls that no trace can represent: False, so that calls raise the error."""
        return False

    def __call__(
        self,
        subject: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        observed: ObservedValues | None = None,
    ) -> Program:
        """Compile a call, if all executors exist now; otherwise, raise the error of the missing executor."""
        return self.settings(subject, args, kwargs, observed)


def compiler_by_names(
    transforms: tuple[Transform, ...],
    names: tuple[str, ...],
    options: CompileOptions,
    device: torch.device | None,
    lookasides: tuple[Lookaside, ...] = (),
) -> Compiler | CompilerLackingExecutor:
    """Return the compiler with the executors of these names, or a placeholder if an executor is missing."""
    lacking_executor = CompilerLackingExecutor(transforms, names, options, device, lookasides)
    try:
        return lacking_executor.settings
    except (UnknownName, EnvironmentLacks):
        return lacking_executor
