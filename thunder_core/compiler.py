"""The whole way of a program, one line a stage: acquire, transform, claim, free, generate."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from thunder_core.acquire.acquire import acquire, collection_paused, constrained
from thunder_core.acquire.named import NamedValue, named_values, require_parameters
from thunder_core.acquire.numbers import NeedsValues
from thunder_core.acquire.shortfall import shortfalls
from thunder_core.acquire.symbolic import CONSTANT, IsSymbolic, Symbolic, arguments_differ
from thunder_core.analysis.copies import tells_copies_from_views
from thunder_core.autodiff.program_derivative import (
    ProgramDerivative,
    Underivable,
    claimed_forward,
    differentiate_program,
    is_differentiable,
)
from thunder_core.autodiff.rules import with_rules
from thunder_core.autodiff.tape import first_line
from thunder_core.capture.all_sizes import size_oblivious
from thunder_core.capture.compiled_call import WHY_RECORDED, is_followed_call
from thunder_core.capture.quiet_attempts import quiet_attempt
from thunder_core.claiming.claim import claim
from thunder_core.claiming.device_code import DeviceCode, targeting
from thunder_core.claiming.executor import Executor, find_executor
from thunder_core.claiming.free import free_after_last_use
from thunder_core.compile_options import MAX_PROGRAMS, CacheMode, CompileOptions, DataDependence, SharpEdges
from thunder_core.dump import Dump, NoSink, Sink, asked_dump
from thunder_core.errors import Bug, CannotReplay, EnvironmentLacks, SpecializationWarning, UnknownName, WrongInputs
from thunder_core.ir.check import check_trace
from thunder_core.ir.symbol import BoundSymbol
from thunder_core.ir.trace import Trace, with_number_inputs
from thunder_core.nested import CallsByLine
from thunder_core.recipe import Transform, order_transforms
from thunder_core.runtime.compiled import Specializations
from thunder_core.runtime.library.objects import GuardFailed
from thunder_core.runtime.module import compiled_function, compiled_module
from thunder_core.runtime.observed_values import ObservedValues
from thunder_core.runtime.program import Program, Stage
from thunder_core.runtime.retraces import warn_of
from thunder_core.symbolic_arguments import Given, SymbolicArgument, symbolic_arguments
from thunder_core.transforms.cse import ShareCommonExpressions
from thunder_core.transforms.dce import DropDeadCode

AUTOGRAD_OFF = "autograd was off when it was traced"
NOTHING_FOLLOWED = "nothing that it reads requires a gradient"
NOT_FOR_THIS_CALL = "what was decided by sizes does not hold for the call"
NEEDS_VALUES = "C code looks at numbers inside of a container"
ELSEWHERE = "it was traced for a device that need not be here"
ALWAYS: tuple[Transform, ...] = (ShareCommonExpressions(), DropDeadCode())


def takes_all_sizes(executor: Executor) -> bool:
    """Whether an executor does in a program with symbolic sizes all that it does in one for the sizes of a call."""
    return executor.symbolic_sizes and not executor.replacements


class NotForThisCall(Exception):
    """A program that was compiled for symbolic sizes does not serve the call, or perhaps not as eager PyTorch does.

    `violated` names the sizes by which was decided what does not hold for it.
    """

    def __init__(self, violated: frozenset[str] = frozenset()) -> None:
        super().__init__(NOT_FOR_THIS_CALL)
        self.violated = violated


@dataclass(frozen=True)
class Compiler:
    """A compiler of subjects: the transforms in their order, the executors in the user's, and the other options.

    With a `device`, which need not be here, for that one, wherever the model and the arguments are now. A `dump` is
    where the stages of what is compiled are written, which is no part of how: pickles leave it out.
    """

    transforms: tuple[Transform, ...]
    executors: tuple[Executor, ...]
    options: CompileOptions
    device: torch.device | None = None
    dump: Dump | None = field(default=None, compare=False)

    @property
    def settings(self) -> Compiler:
        """The settings by which it compiles: these."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle has the executors by their names; raises `CannotReplay` for one whose name is another's."""
        names = tuple(map(name_for_pickle, self.executors))
        return compiler_by_names, (self.transforms, names, self.options, self.device)

    def __call__(
        self,
        subject: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        observed: ObservedValues | None = None,
    ) -> Program:
        """Trace the subject on these arguments and compile what it did.

        It is compiled for symbolic numbers and sizes where that can be, as far as the options ask for it.
        """
        reason = ""
        named = self._named(subject, args, kwargs)
        ways = self._ways(observed or ObservedValues(), named, args, kwargs)
        while ways:
            symbolic = ways.pop(0)
            try:
                program = self._compiled(subject, args, kwargs, symbolic, "" if symbolic.may_be else reason)
                if symbolic.sizes:
                    program.prepare(subject, args, kwargs)
            except IsSymbolic:
                continue
            except GuardFailed:  # what was decided by a number of Python's that was computed from another size
                reason = reason or NOT_FOR_THIS_CALL
            except NotForThisCall as error:
                reason = reason or NOT_FOR_THIS_CALL
                if error.violated and not symbolic.real_hints_for:
                    ways.insert(0, symbolic.again(real_hints_for=error.violated))
                    continue
            except NeedsValues:
                reason, ways = reason or NEEDS_VALUES, [CONSTANT]
            except Exception as error:
                if not ways or symbolic.is_constant:
                    raise
                reason = reason or first_line(error) or type(error).__name__
            else:
                if symbolic.is_constant or not symbolic.probing:
                    warn_of_shortfalls(subject, named, program)
                    return program
            ways = [way for way in ways if not symbolic.is_like(way)]
        raise Bug("a call was compiled in no way", fix="report this with the program that was compiled")

    def _named(
        self, subject: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Mapping[str, SymbolicArgument]:
        """The sizes and numbers of a call that are symbolic by name, by their paths; not those out of their range."""
        if self.device is not None:
            return {}
        values = named_values(self.options.symbolic, subject, args, kwargs)
        if outside := [value for value in values if not value.is_in_range]:
            warn_of(subject, *out_of_range(outside))
        return {value.path: value.argument for value in values if value.is_in_range}

    def _ways(
        self,
        observed: ObservedValues,
        named: Mapping[str, SymbolicArgument],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> list[Symbolic]:
        """The ways to trace a call, of which the first is taken that serves it: with symbolic numbers, and without.

        Whether any differ is tried first, unless the arguments tell, or it was asked for symbols.
        """
        arguments = self.options.cache == "symbolic values"
        asked = arguments or bool(named)
        if self.device is not None or not (asked or observed.any_there):
            return [CONSTANT]
        numbers = [] if asked else [Symbolic(observed)]
        if not asked and not (observed.sizes_may_be_symbolic and all(map(takes_all_sizes, self.executors))):
            return [*numbers, CONSTANT]
        probes = [] if asked or arguments_differ(observed, args, kwargs) else [Symbolic(observed, probing=True)]
        general = Symbolic(observed, named, arguments=arguments, sizes=True)
        ways = [general.again(avoid_one_hints=True), general, general.again(oblivious=False)]
        return [*probes, *ways, *numbers, CONSTANT]

    def _compiled(
        self,
        subject: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        symbolic: Symbolic,
        constant_because: str,
    ) -> Program:
        """The program of a call; raises `NotForThisCall` where it would serve others alone."""
        dump = self.dump or asked_dump(None)
        sink: Sink = dump.program(subject) if dump else NoSink()
        watch = _Watch(sink)
        oblivious = symbolic.sizes and symbolic.oblivious
        with (
            size_oblivious() if oblivious else nullcontext(),
            quiet_attempt() if symbolic.sizes else nullcontext(),
        ):
            with collection_paused():
                acquired = acquire(
                    subject,
                    args,
                    kwargs,
                    sharp_edges=self.options.sharp_edges,
                    functional=self.options.functional,
                    device=self.device,
                    evaluates=self.options.data_dependent != "error",
                    symbolic=symbolic,
                    nested=CallsByLine(self),
                )
                watch.note(acquired.computation)
                watch.add(acquired.prologue)
                watch.add(acquired.epilogue)
                trace = acquired.computation
                if oblivious and acquired.sizes is not None and tells_copies_from_views(trace):
                    raise NotForThisCall
                for transform in self.transforms:
                    trace = watch.note(check_trace(transform(trace)))
            parts, recorded, lacking = self._differentiated(trace, sink)
            for step in parts.steps if parts else ():
                watch.note(check_trace(step))
            if parts and parts.tail:
                sink.write(parts.tail)
            forward = claimed_forward(parts) if parts else with_rules(claim(trace, self.executors), lacking)
            forward = with_number_inputs(watch.note(forward))
            if parts and (body := parts.take(forward.inputs)) is not None:
                watch.note(body)
        if acquired.sizes is not None and (violated := acquired.sizes.violated()):
            raise NotForThisCall(violated)
        acquired = constrained(acquired, forward.inputs)
        if acquired.sizes is not None:
            watch.add(acquired.prologue)
        with collection_paused():
            watch.note(check_trace(free_after_last_use(forward)))
        return Program(
            tuple(watch.stages),
            acquired.guards,
            acquired.sharp_edges,
            parts,
            recorded,
            acquired.numbers,
            acquired.places,
            acquired.observed,
            constant_because,
            acquired.constraints,
            tuple(shortfalls(acquired.sizes, symbolic.named)) if acquired.sizes is not None else (),
        )

    def _differentiated(self, trace: Trace, sink: Sink) -> tuple[ProgramDerivative | None, str, BoundSymbol | None]:
        """The trace with a backward of its own, or why it has none, and what it lacks."""
        if self.device is not None:
            return None, ELSEWHERE, None
        if torch.is_grad_enabled() and any(map(is_followed_call, trace.bound_symbols)):
            return None, WHY_RECORDED, None
        if not is_differentiable(trace):
            return None, NOTHING_FOLLOWED if torch.is_grad_enabled() else AUTOGRAD_OFF, None
        try:
            return differentiate_program(trace, self.executors, ALWAYS, self.options.memory_budget, sink), "", None
        except Underivable as reason:
            return None, str(reason), reason.missing_formula


@dataclass(frozen=True)
class Unequipped:
    """In place of a compiler: one from a pickle, of whose executors this process lacks one; it compiles nothing."""

    transforms: tuple[Transform, ...]
    executors: tuple[str, ...]
    options: CompileOptions
    device: torch.device | None

    @property
    def settings(self) -> Compiler:
        """The settings by which it would compile; raises the error for the executor that is not to be had."""
        found = tuple(map(find_executor, self.executors))
        return Compiler(self.transforms, found, self.options, self.device)

    def __call__(
        self,
        subject: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        observed: ObservedValues | None = None,
    ) -> Program:
        """The program for such a call, if the executor has come to be there; raises as `settings` does."""
        return self.settings(subject, args, kwargs, observed)


def compiler_by_names(
    transforms: tuple[Transform, ...], names: tuple[str, ...], options: CompileOptions, device: torch.device | None
) -> Compiler | Unequipped:
    """The compiler with the executors of these names; where one is not to be had, its first call will say so."""
    try:
        return Unequipped(transforms, names, options, device).settings
    except (UnknownName, EnvironmentLacks):
        return Unequipped(transforms, names, options, device)


def name_for_pickle(executor: Executor) -> str:
    """The name of an executor; raises `CannotReplay` where another one has it, which would be found in its place."""
    try:
        found = find_executor(executor.name)
    except (UnknownName, EnvironmentLacks):
        return executor.name
    if found is not executor:
        raise CannotReplay(
            f"what was compiled with the executor {executor.name} cannot be pickled: that name is another executor's",
            fix="register it with register_executor under a name of its own, or pickle the module that was compiled",
        )
    return executor.name


class _Watch:
    """Notes each stage with the seconds since the one before, and hands it on to be written."""

    def __init__(self, sink: Sink) -> None:
        self.stages: list[Stage] = []
        self._sink = sink
        self._before = time.perf_counter()

    def note(self, trace: Trace) -> Trace:
        self.add(trace, time.perf_counter() - self._before)
        self._before = time.perf_counter()
        return trace

    def add(self, trace: Trace, seconds: float = 0.0) -> None:
        self.stages.append(Stage(trace, seconds))
        self._sink.write(trace)


def jit(
    subject: Callable[..., Any],
    *,
    transforms: Sequence[Transform] = (),
    executors: Sequence[str | Executor] = ("torch",),
    cache: CacheMode = "constant values",
    sharp_edges: SharpEdges = "allow",
    functional: bool = False,
    data_dependent: DataDependence = "guard",
    memory_budget: float = 1.0,
    max_programs: int = MAX_PROGRAMS,
    symbolic: Given = (),
    dump: str | os.PathLike[str] | None = None,
) -> Any:
    """Compile a function or a module; the work is done at the first call, and again for inputs that differ.

    A module gives a module of the same class that shares all its state; a function gives a function. `transforms`
    are applied in the order of their traits, before dead code is dropped; `executors` claim lines in the order given,
    and eager PyTorch runs the rest. `cache` is `"constant values"` (a program serves all inputs that its guards
    take), `"symbolic values"` (sizes of tensors, and numbers, among the arguments are symbols, so that a program serves
    all that satisfy what was decided by them), `"same input"` (the first program serves every call, and an input that
    it does not take is refused) or `"no caching"` (trace at each call).

    `sharp_edges` says what becomes of what can be neither guarded nor replayed (the time, random numbers outside torch,
    input and output, opaque C state): `"allow"` bakes it into the trace, `"warn"` says so, `"error"` refuses it with
    the list. A `functional` program reads nothing but its arguments: see `thunder_core.functional.jit`.

    `memory_budget` bounds what a training step saves for its backward: a part (0.0 to 1.0) of what it would save, or,
    as an integer above 1, bytes. Below 1.0, layers are computed once more in the backward, the first ones first; at 0.0
    only what passes from layer to layer is saved. `examine_memory` tells what that comes to.

    `data_dependent` says what becomes of a program that asks for the value of a tensor, for a branch or a size:
    `"guard"` traces it for the value that it gets, or for the outcome of what it compares a number with, and again when
    a call gets another one, but raises `DataDependent` at the ninth value of one line; `"retrace"` goes on tracing;
    `"error"` refuses the first.

    `max_programs` bounds how many programs are kept; where there would be more, the one that was used longest ago goes.
    That, and tracing again a third time for one reason, is said once, by a `RecompileWarning`.

    `symbolic` names sizes and numbers among the arguments that are symbols from the first call on, whatever `cache`
    says: `["input_ids.size(1)", "scale"]`, or with ranges `{"input_ids.size(1)": (1, 8192), "scale": None}`. What a
    range implies is decided without a guard. A call outside of it is traced as if the name had not been given, with a
    `RecompileWarning`; a program that does not serve the whole range, by what it decides, with a
    `SpecializationWarning`.

    `dump` is a folder in which each program gets a folder of its own, with every stage of its traces as a file, written
    as soon as it is there. `THUNDER_LOGS` in the environment asks for that without a change of code.

    Raises `BadSymbolicArgument` for names and ranges in `symbolic` that cannot be, here or at a call that has nothing
    of that name, `UnknownName` for an executor that does not exist, `WrongInputs` for a subject that cannot be called,
    and `RecipeConflict` for transforms that exclude each other.
    """
    if isinstance(executors, str | Executor):
        raise WrongInputs(f"executors={executors!r:.80} is one, not several", fix="write executors=[...]")
    if not callable(subject):
        raise WrongInputs(f"jit takes a function or a module, not a {type(subject).__name__}", fix="pass a callable")
    options = CompileOptions(
        cache=cache,
        sharp_edges=sharp_edges,
        functional=functional,
        data_dependent=data_dependent,
        memory_budget=memory_budget,
        max_programs=max_programs,
        symbolic=symbolic_arguments(symbolic),
    )
    require_parameters(subject, options.symbolic)
    ordered = order_transforms((*transforms, *ALWAYS))
    asked = asked_dump(dump)  # what the environment asks for is looked up again when something is compiled
    found = tuple(map(find_executor, executors))
    return compiled_by(Compiler(ordered, found, options, dump=asked if dump is not None else None), subject)


def out_of_range(values: Sequence[NamedValue]) -> tuple[str, str]:
    """The values of a call that are not in the ranges of their names, in words, and what to do."""
    told = ", ".join(f"{one.argument.name} {one.value}, outside of {one.argument.range_text}" for one in values)
    what = f"was called with {told}, as symbolic= has it; for such calls it is traced as if that had not been named"
    return what, "give it a wider range, or keep such calls away from what is compiled"


def warn_of_shortfalls(subject: Callable[..., Any], named: Mapping[str, SymbolicArgument], program: Program) -> None:
    """Warn of what was named as symbolic and is not, or not in all of its range, in a program."""
    if named and program.constant_because:
        names = ", ".join(argument.name for argument in named.values())
        what = f"is traced for the very values of {names}, which symbolic= names: {program.constant_because}"
        warn_of(subject, what, "leave out of what is compiled what needs the values", SpecializationWarning)
    for shortfall in program.shortfalls:
        warn_of(subject, shortfall.what, shortfall.fix, SpecializationWarning)


def compiled_by(compiler: Compiler | Unequipped, subject: Callable[..., Any]) -> Any:
    """The subject, compiled by a compiler when it is called; a copy of a module is compiled by the same."""
    call = Specializations(subject, compiler, compiler.options)
    if not isinstance(subject, torch.nn.Module):
        return compiled_function(call)
    forward = Specializations(subject.forward, compiler, compiler.options)
    return compiled_module(call, forward, partial(compiled_by, compiler))


def specializations_of(compiled: Any) -> Specializations:
    """The cache behind a compiled function or module; `WrongInputs` for anything else."""
    found = getattr(compiled, "_thunder", None)
    if not isinstance(found, Specializations):
        raise WrongInputs(f"{compiled!r:.80} was not compiled by thunder", fix="pass what jit or compile returned")
    return found


def trace_for(
    compiled: Any, device: torch.device, args: tuple[Any, ...], kwargs: dict[str, Any], *, target: str = ""
) -> tuple[Program, tuple[DeviceCode, ...]]:
    """Trace a call for a device that need not be here; the program is kept with the others, and does not run.

    Also the machine code of its kernels, compiled for a GPU of the architecture `target` (`sm_90`).
    """
    cache = specializations_of(compiled)
    if not isinstance(cache.compiler, Compiler):
        raise WrongInputs("this was loaded from an artifact", fix="pass what jit or compile returned")
    compiler = replace(cache.compiler, device=device)
    with targeting(target):
        program = compiler(cache.subject, args, kwargs)
    claimed = program.last("computation")
    kernels = [code for executor in compiler.executors for code in executor.device_code(claimed, target)]
    cache.add(program)
    cache.last = program
    cache.misses += 1
    return program, tuple(kernels)


def last_program(compiled: Any) -> Program:
    """The program that the latest call ran; `WrongInputs` before the first call."""
    program = specializations_of(compiled).last
    if program is None:
        raise WrongInputs("nothing has been traced yet", fix="call the compiled function once")
    return program


def last_traces(compiled: Any) -> list[Trace]:
    """The computation of the latest call, stage by stage; the last one is what runs."""
    return last_program(compiled).traces("computation")


def last_prologue_traces(compiled: Any) -> list[Trace]:
    """The prologue of the latest call: guards and unpacking."""
    return last_program(compiled).traces("prologue")


def last_epilogue_traces(compiled: Any) -> list[Trace]:
    """The epilogue of the latest call: side effects and the result."""
    return last_program(compiled).traces("epilogue")


def last_backward_traces(compiled: Any) -> list[Trace]:
    """The backward of the latest call, stage by stage; empty where it has none, see `last_backward_reason`.

    A backward is compiled when it first runs, for the results that gradients are given for; before that there is the
    trace as it was derived, for gradients of all results. Each line is tagged with the line of the program that it
    differentiates.
    """
    return last_program(compiled).traces("backward")


def last_backward_reason(compiled: Any) -> str:
    """The reason why the latest call has no backward of its own, so that autograd records what it does; else empty.

    >>> import torch
    >>> spoiled = jit(lambda x: x.exp().add_(1))  # exp's derivative is its result, which is no more
    >>> _ = spoiled(torch.ones(2, requires_grad=True))
    >>> last_backward_reason(spoiled)
    '`torch.Tensor.add_`...: it writes to a tensor that needs a gradient'
    """
    return last_program(compiled).recorded


def cache_hits(compiled: Any) -> int:
    """The number of calls that were served by a program that was there."""
    return specializations_of(compiled).hits


def cache_misses(compiled: Any) -> int:
    """The number of calls that had to be traced."""
    return specializations_of(compiled).misses


def recompile_reasons(compiled: Any) -> list[str]:
    """The reason why calls were not served by programs that were there, the latest last: path, what it was, what it is.

    >>> import torch
    >>> double = jit(lambda x, factor: x * factor)
    >>> _ = double(torch.ones(2), 2), double(torch.ones(2), 3)
    >>> recompile_reasons(double)
    ['args[1]: was 2, is 3']
    """
    return list(specializations_of(compiled).reasons)
