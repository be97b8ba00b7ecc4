"""A run: one interpretation of a program, composed of the parts that observe, guard and record it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch._subclasses.fake_tensor import FakeTensor

from thunder_core.foundation.errors import CannotReplay, SourceLine
from thunder_core.frontend.acquire.applied_functions import AppliedFunctions
from thunder_core.frontend.acquire.backward_hooks import BackwardHooks
from thunder_core.frontend.acquire.counts import CountSources
from thunder_core.frontend.acquire.gradients import OutsideGradients
from thunder_core.frontend.acquire.handover import COMPILE_TOGETHER
from thunder_core.frontend.acquire.numbers import OutsideNumbers
from thunder_core.frontend.acquire.outside.classes import Classes
from thunder_core.frontend.acquire.outside.draws import ProgramDraws
from thunder_core.frontend.acquire.outside.guards.tensors import SharesStorage
from thunder_core.frontend.acquire.outside.native_calls import NativeCalls
from thunder_core.frontend.acquire.outside.native_reads import NativeReads
from thunder_core.frontend.acquire.outside.outside_writes import OutsideWrites
from thunder_core.frontend.acquire.outside.paths import Path, expression_path
from thunder_core.frontend.acquire.outside.recording import ProgramOutput
from thunder_core.frontend.acquire.outside.sharp import OutsideReads, SharpEdge, is_users_code
from thunder_core.frontend.acquire.outside.symbolic import Symbolic
from thunder_core.frontend.acquire.outside.whole_reads import WholeReads
from thunder_core.frontend.acquire.run.cached_calls import CachedCalls
from thunder_core.frontend.acquire.run.call_rules import CallRules
from thunder_core.frontend.acquire.run.code_origins import CodeOrigins
from thunder_core.frontend.acquire.run.context_variables import ContextVariables
from thunder_core.frontend.acquire.run.drawn_arrays import combine_numbers
from thunder_core.frontend.acquire.run.observed_calls import ObservedCalls
from thunder_core.frontend.acquire.run.options import RunOptions
from thunder_core.frontend.acquire.run.program_state import (
    CallState,
    NotedEdges,
    ProcessBefore,
    RunningModules,
    TraceNotes,
)
from thunder_core.frontend.acquire.run.replacements import Replacements
from thunder_core.frontend.acquire.run.run_inputs import RunInputs
from thunder_core.frontend.acquire.run.symbolic_keys import SymbolicKeys
from thunder_core.frontend.acquire.run.unread_output import note_later_writes, require_unread_output
from thunder_core.frontend.acquire.saved_tensors_hooks import SavedTensorsHooks
from thunder_core.frontend.acquire.settings import Settings
from thunder_core.frontend.acquire.texts import Texts
from thunder_core.frontend.interpreter.catching import has_finally, is_caught, is_error_check
from thunder_core.passes.autodiff.vjp import backward_of
from thunder_core.tracing.analysis.data_errors import ERRORS_BY_VALUES
from thunder_core.tracing.capture.location import Location
from thunder_core.tracing.capture.quantities import Quantity
from thunder_core.tracing.capture.recorded_program import RecordedProgram
from thunder_core.tracing.capture.recorder import Recorder
from thunder_core.tracing.capture.symbolic.sizes import SymbolicSizes
from thunder_core.tracing.ir.proxy import Proxy
from thunder_core.tracing.ir.retrace import Retrace, RetraceReason, RunsInEager
from thunder_core.tracing.ir.symbol import BoundSymbol

# The attributes that hold the parts of a run, in the order in which the parts are built.
PARTS = (
    *("options", "rules", "process_before", "code_origins", "modules", "output", "edges", "notes", "calls", "settings"),
    *("outside", "writes", "native_calls", "classes", "native_reads"),
    *("inputs", "numbers", "outside_gradients", "recorder", "counts", "texts", "draws"),
    *("replacements", "context_variables", "cached_calls", "symbolic_keys", "functions"),
    *("backward_hooks", "saved_tensors_hooks"),
    *("machine", "retrace_request"),
)
# The parts that have a method `release`, because their own objects refer to each other.
PARTS_WITH_CYCLES = ("functions", "outside", "recorder")


class Run(ObservedCalls, RecordedProgram):
    """One run of a program under the interpreter, with its reads, writes and recorded operations.

    The subject is a module or function. A part may store the run while the run is built, but uses the other parts only
    after all parts are built. If building a part fails, the run is released.
    """

    retrace_request: Retrace | None = None
    quiet_types = frozenset({torch.Tensor, torch.nn.Parameter, FakeTensor, torch.dtype, torch.device, torch.Size})

    def __init__(
        self,
        subject: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: RunOptions,
        rules: CallRules,
    ) -> None:
        self.options, self.rules = options, rules
        try:
            self._build_state(subject)
            self._build_observers()
            self.inputs = RunInputs(self.outside, subject, args, kwargs, options.device, options.moves_from)
            self._build_recorder()
            self._build_callers()
            self.inputs.guard()
        except BaseException:
            self.release()
            raise

    def _build_state(self, subject: Callable[..., Any]) -> None:
        """Build the parts that hold state of the program, and that need no other part."""
        self.process_before = ProcessBefore()
        self.code_origins = CodeOrigins()
        self.modules = RunningModules(subject)
        self.output = ProgramOutput()
        self.edges = NotedEdges()
        self.notes = TraceNotes()
        self.calls = CallState()
        self.settings = Settings()

    def _build_observers(self) -> None:
        """Build the parts that guard reads of outside objects, and log writes to them."""
        self.outside = WholeReads(
            self.options.symbolic,
            self._symbol_at,
            self._before_read_of_draw,
            OutsideReads(self._line) if self.options.functional else None,
            self.leave_to_eager,
            self.retrace,
        )
        self.writes = OutsideWrites(self.outside)
        self.native_calls = NativeCalls(self.outside, self.writes, self.leave_to_eager)
        self.classes = Classes(self.outside)
        self.native_reads = NativeReads(
            self.outside, self.classes.is_users, self.note_edge, self.leave_to_eager, self.settings.answers
        )

    def _build_recorder(self) -> None:
        """Build the recorder, and the parts for symbolic numbers, counts, texts and random numbers."""
        options, symbolic = self.options, self.options.symbolic
        self.numbers = OutsideNumbers(self)
        self.outside_gradients = OutsideGradients(self)
        self.recorder = Recorder(
            self,
            evaluates_tensor_values=options.evaluates_tensor_values,
            lines_that_raised=options.lines_that_raised,
            counts_values=symbolic.counts,
            derivatives_read_numbers=options.derivatives_read_numbers,
            sizes=self._sizes(symbolic) if symbolic.sizes else None,
        )
        self.counts = CountSources(self.outside, self.recorder, self._line)
        self.texts = Texts(self, read_at_once=options.evaluates_strings_at_once)
        self.draws = ProgramDraws(self, options.drawing_functions, constants=options.draws_are_constant)

    def _build_callers(self) -> None:
        """Build the parts that handle calls of certain functions: lookasides, cached functions and hooks."""
        self.replacements = Replacements(self.options.lookasides)
        self.context_variables = ContextVariables(self)
        self.cached_calls = CachedCalls(self, fills=self.options.leaves_cache_fills_to_eager)
        self.symbolic_keys = SymbolicKeys(self, self.cached_calls, self.options.plain_keys)
        self.functions = AppliedFunctions(self)
        self.backward_hooks = BackwardHooks(self)
        self.saved_tensors_hooks = SavedTensorsHooks(self)

    def _sizes(self, symbolic: Symbolic) -> SymbolicSizes:
        """Return the symbolic sizes of the recording."""
        return SymbolicSizes(
            self._line,
            self.inputs.symbolic_sizes,
            self.inputs.symbolic_strides,
            expression_path,
            range_of=symbolic.range_of,
            group_of=symbolic.group_of,
            avoid_one_hints=symbolic.avoid_one_hints,
            decides_ones=symbolic.decides_ones,
            real_hints_for=symbolic.real_hints_for,
        )

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments as the program receives them, with symbolic numbers."""
        return self.inputs.arguments(self.numbers)

    def build_probe(self, program: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Run:
        """Return a separate run for a part of the program. The run interprets each `torch.autograd.Function`."""
        options = self.options.for_probe(interprets_autograd_functions=True)
        return Run(program, args, kwargs, options, self.rules)

    def retrace(self, reason: RetraceReason) -> Retrace:
        """Return the exception that requests another trace. The request is stored, because the program may catch it."""
        self.retrace_request = Retrace(reason)
        return self.retrace_request

    @property
    def outside_numbers(self) -> OutsideNumbers:  # type: ignore[override]
        """The sources of numbers from outside."""
        return self.numbers

    @property
    def watches_native_code(self) -> bool:  # type: ignore[override]
        """Whether the run reports the user's code that C code calls."""
        return self.options.watches_native_code

    # ---- queries of the recorder ----

    def name_input(self, value: torch.Tensor | torch.Generator) -> str:
        """Return the name of a tensor or generator from outside. Without a path, it is a constant and a sharp edge."""
        if self.outside.symbolic.probing and isinstance(value, torch.Tensor):
            self.inputs.symbolic_sizes(value)  # raises `Retrace` for a symbolic size
        if self.outside.path_of(value) is None:
            description = f"a tensor of shape {list(value.shape)}" if isinstance(value, torch.Tensor) else "a generator"
            self.note_edge(f"{description} became a constant, because no path leads to it")
        return self.inputs.name_tensor(value)

    def name_number(self, path: Path) -> str:
        """Return the name of the number at a path."""
        return self.inputs.name_number(path)

    def name_function(self, text: str) -> str:
        """Return an unused name for a sub-trace that resembles the text."""
        return self.inputs.unused_name(text)

    def device_of(self, tensor: torch.Tensor) -> torch.device:
        """Return the program's device for a tensor that would move to it; otherwise the tensor's device."""
        return self.inputs.device_of(tensor)

    def on_query(self, tensor: torch.Tensor, query: str, answer: object) -> None:
        """Guard the answer to a query of a tensor."""
        self.outside.guard_fact(tensor, query, answer)

    def on_storage(self, tensor: torch.Tensor) -> None:
        """Guard which outside tensors share a storage, because the program may compare storages."""
        self.outside.guard_together(SharesStorage, tensor)

    def on_wrapper(self, tensor: torch.Tensor) -> None:
        """Guard the inner tensors of a wrapper subclass."""
        self.outside.guard_wrapper(tensor)

    def combine_numbers(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
        """Return an operator's result for a symbolic number and a value of another library, or `NotImplemented`."""
        return combine_numbers(self, function, operands)

    def call_torch_function(self, method: Callable[..., Any], *args: Any) -> Any:
        """Interpret the `__torch_function__` of a subclass of Tensor."""
        self.outside.guard_class_method(method.__self__, "__torch_function__")  # type: ignore[attr-defined]
        return self.machine.call_back(method, args, {})

    def catches_errors(self) -> bool:
        """Whether a function of the program catches an error that depends on the values of tensors.

        A `finally` of the user counts, too, because its effects are part of the call that raises.
        """
        frame = self.machine.frame
        return is_caught(frame, ERRORS_BY_VALUES) or (
            self.options.may_read_values and has_finally(frame, is_users_code)
        )

    def is_check(self) -> bool:
        """Whether the program reads a value only to raise an error if the value is wrong, as an `assert` does."""
        frame = self.machine.frame
        return frame is not None and is_error_check(frame)

    def count_source(
        self, quantity: Quantity, bsyms: Sequence[BoundSymbol], tensor: Proxy, value: object
    ) -> Path | None:
        """Return the path of a count that the values of a tensor determine, or None for a constant."""
        return self.counts(quantity, bsyms, tensor, value)

    def backward_of(self, bsym: BoundSymbol, requires_grad_names: frozenset[str]) -> Sequence[BoundSymbol] | None:
        """Return the backward of a bound symbol for the names that require a gradient."""
        return backward_of(bsym, requires_grad_names)

    def has_freed_graph(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor of the program has an autograd graph that a backward pass of the program has freed."""
        return self.recorder.gradients.has_freed_graph(tensor)

    def _symbol_at(self, path: Path) -> Any:
        """Return the symbols for the number, or the tuple of numbers, at a path; None if no number is symbolic."""
        return self.inputs.symbol_at(path, self.numbers)

    def _before_read_of_draw(self) -> None:
        """Raise `Retrace`, so that the prologue calls the running function, before C code reads a random value.

        Otherwise, the trace would be valid only for this value. Does nothing if the prologue cannot call the function.
        """
        self.draws.require_no_computable_function()

    # ---- the program's position ----

    def location(self) -> Location:
        """Return the innermost line that is neither in PyTorch nor in a context manager, and the innermost module."""
        frame = self.machine.frame if hasattr(self, "machine") else None  # no machine before the program runs
        return self.code_origins.users_location(frame, self.modules.innermost)

    def _line(self) -> SourceLine | None:
        """Return the program's line; None before the program runs."""
        return self.location().source

    def note_edge(self, what: str, *, loud: bool = False) -> None:
        """Note a sharp edge at the program's current line.

        A `loud` edge is reported even if sharp edges are allowed.
        """
        self.edges.note(what, self.location().source, loud=loud)

    def refuse(self, what: str, fix: str = COMPILE_TOGETHER, where: SourceLine | None = None) -> NoReturn:
        """Raise the error for an action that a trace cannot represent, and store the error."""
        raise self.recorder.fail(CannotReplay(what, fix=fix, where=where or self.location().source))

    def leave_to_eager(self, what: str, fix: str, where: SourceLine | None = None) -> NoReturn:
        """Raise `Retrace` to run this call in eager PyTorch, because a trace cannot represent an action of the program.

        Raises `CannotReplay` instead if the options do not leave calls to eager PyTorch.
        """
        if not self.options.leaves_to_eager:
            self.refuse(what, fix, where)
        raise self.retrace(RunsInEager(what, fix, where or self.location().source))

    # ---- the end ----

    def collect_edges(self) -> tuple[SharpEdge, ...]:
        """Return the sharp edges of the run.

        Raises `Retrace` if the program may read its own printed or logged output: eager PyTorch then makes the call.
        """
        require_unread_output(self)
        outside_reads = self.outside.outside_reads.edges.values() if self.outside.outside_reads else ()
        for bsym in self.recorder.data_dependent.bsyms_read:
            description = f"`{bsym.symbol.name}` reads the value of a tensor; the program is specialized to this value"
            self.edges.note(description, bsym.source)
        note_later_writes(self)
        return (*outside_reads, *self.edges.in_order())

    def release(self) -> None:
        """Release all objects of the run, because its parts refer to each other, and to the user's tensors.

        Otherwise, the tensors would live until the garbage collector runs, which may be long after the run.
        """
        if hasattr(self, "machine"):
            self.machine.end()
        for name in PARTS_WITH_CYCLES:
            if (part := getattr(self, name, None)) is not None:  # a run that could not be built has only some parts
                part.release()
        for name in PARTS:
            self.__dict__.pop(name, None)
